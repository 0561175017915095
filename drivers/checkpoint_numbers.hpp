#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// What a tensor's elements are like. Of a complex number the magnitude counts; values that are not finite are
/// counted and left out of the rest.
struct TensorSummary {
  std::int64_t num_elements = 0;
  std::int64_t num_not_finite = 0;
  double min = 0.0;  ///< 0 when no value is finite
  double max = 0.0;
  double norm = 0.0;  ///< Euclidean
};

/// Sums up a tensor of any size, whose elements come in pieces of whole elements.
class SummaryBuilder {
 public:
  explicit SummaryBuilder(ElementType type) : type_(type) {}

  void add(std::span<const std::byte> elements);
  TensorSummary summary() const;

 private:
  ElementType type_;
  TensorSummary summary_;
  double sum_of_squares_ = 0.0;
};

/// How two tensors of one type and shape differ. Elements are equal when their bits are: 0 and -0 differ, a NaN
/// equals the same NaN.
struct TensorDifference {
  std::int64_t num_elements = 0;
  std::int64_t num_different = 0;
  std::int64_t first_different = -1;  ///< row-major index
  double largest = 0.0;               ///< of |a - b|; infinite or NaN when a value is
  double norm = 0.0;                  ///< Euclidean, of a - b

  bool equal() const { return num_different == 0; }
};

/// Compares two tensors, piece by piece.
class DifferenceBuilder {
 public:
  explicit DifferenceBuilder(ElementType type) : type_(type) {}

  /// Pieces of the same size.
  void add(std::span<const std::byte> left, std::span<const std::byte> right);
  TensorDifference difference() const;

 private:
  ElementType type_;
  TensorDifference difference_;
  double sum_of_squares_ = 0.0;
};

}  // namespace lockstep
