#include "drivers/checkpoint_numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>

namespace lockstep {
namespace {

/// The types of 16 bits that C++20 has no name for.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

double to_double(Float16 value) {
  const int exponent = value.bits >> 10 & 0x1f;
  const int mantissa = value.bits & 0x3ff;
  const double sign = (value.bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(0x400 | mantissa, exponent - 25);
}

double to_double(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

template <class T>
double to_double(T value) {
  return static_cast<double>(value);
}

double magnitude(double value) { return value; }
template <class T>
double magnitude(std::complex<T> value) {
  return std::abs(std::complex<double>(value));
}
template <class T>
double magnitude(T value) {
  return to_double(value);
}

double distance(double left, double right) { return std::abs(left - right); }
template <class T>
double distance(std::complex<T> left, std::complex<T> right) {
  return std::abs(std::complex<double>(left) - std::complex<double>(right));
}
template <class T>
double distance(T left, T right) {
  return std::abs(to_double(left) - to_double(right));
}

/// Calls `visit` with an element type's C++ type as a value of it.
template <class Visit>
void with_type(ElementType type, Visit&& visit) {
  switch (type) {
    case ElementType::boolean:
    case ElementType::uint8:
      return visit(std::uint8_t{});
    case ElementType::int8:
      return visit(std::int8_t{});
    case ElementType::int16:
      return visit(std::int16_t{});
    case ElementType::int32:
      return visit(std::int32_t{});
    case ElementType::int64:
      return visit(std::int64_t{});
    case ElementType::float16:
      return visit(Float16{});
    case ElementType::bfloat16:
      return visit(BFloat16{});
    case ElementType::float32:
      return visit(float{});
    case ElementType::float64:
      return visit(double{});
    case ElementType::complex64:
      return visit(std::complex<float>{});
    case ElementType::complex128:
      return visit(std::complex<double>{});
  }
}

template <class T>
T element(std::span<const std::byte> elements, std::size_t index) {
  T value;
  std::memcpy(&value, elements.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

void SummaryBuilder::add(std::span<const std::byte> elements) {
  with_type(type_, [&]<class T>(T) {
    const std::size_t count = elements.size() / sizeof(T);
    double min = HUGE_VAL;
    double max = -HUGE_VAL;
    double sum_of_squares = 0.0;
    std::int64_t num_not_finite = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = magnitude(element<T>(elements, i));
      if (!std::isfinite(value)) {
        ++num_not_finite;
        continue;
      }
      min = std::min(min, value);
      max = std::max(max, value);
      sum_of_squares += value * value;
    }
    const bool first = summary_.num_elements == summary_.num_not_finite;
    if (static_cast<std::size_t>(num_not_finite) < count) {
      summary_.min = first ? min : std::min(summary_.min, min);
      summary_.max = first ? max : std::max(summary_.max, max);
    }
    sum_of_squares_ += sum_of_squares;
    summary_.num_not_finite += num_not_finite;
    summary_.num_elements += static_cast<std::int64_t>(count);
  });
}

TensorSummary SummaryBuilder::summary() const {
  TensorSummary summary = summary_;
  summary.norm = std::sqrt(sum_of_squares_);
  return summary;
}

void DifferenceBuilder::add(std::span<const std::byte> left, std::span<const std::byte> right) {
  const auto first = difference_.num_elements;
  difference_.num_elements += static_cast<std::int64_t>(left.size() / size_of(type_));
  if (std::memcmp(left.data(), right.data(), left.size()) == 0) return;
  with_type(type_, [&]<class T>(T) {
    for (std::size_t i = 0; i < left.size() / sizeof(T); ++i) {
      if (std::memcmp(left.data() + i * sizeof(T), right.data() + i * sizeof(T), sizeof(T)) == 0) continue;
      if (difference_.num_different++ == 0) difference_.first_different = first + static_cast<std::int64_t>(i);
      const double apart = distance(element<T>(left, i), element<T>(right, i));
      // Once a difference is not a number, it stays the largest one.
      if (std::isnan(apart) || apart > difference_.largest) difference_.largest = apart;
      sum_of_squares_ += apart * apart;
    }
  });
}

TensorDifference DifferenceBuilder::difference() const {
  TensorDifference difference = difference_;
  difference.norm = std::sqrt(sum_of_squares_);
  return difference;
}

}  // namespace lockstep
