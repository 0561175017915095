#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// One array of a data set: a value of this type and shape for each sample.
struct FieldInfo {
  std::string name;  ///< "images", "labels"
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> sample_shape;  ///< without the first (sample) dimension

  std::size_t sample_bytes() const {
    std::size_t bytes = size_of(type);
    for (const std::int64_t extent : sample_shape) bytes *= static_cast<std::size_t>(extent);
    return bytes;
  }
};

/// A data set that can be read at any sample, in any order, by each rank for itself (no call is collective).
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual std::int64_t num_samples() const = 0;
  virtual const std::vector<FieldInfo>& fields() const = 0;

  /// Copies field `field` of the samples `ids` to `out`, one after the other: ids.size() x sample_bytes() bytes.
  /// Throws Error when the file cannot be read. May be called from one thread at a time.
  virtual void read(std::size_t field, std::span<const std::int64_t> ids, std::byte* out) = 0;
};

}  // namespace lockstep
