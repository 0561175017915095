#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// What the values of an axis count, which decides how its ticks may be spaced.
enum class AxisValues { whole_numbers, real_numbers };

/// The scale of one axis of a chart: from 0 to at least a given value, with ticks at round numbers.
///
/// Very large and very small values are written with a power of ten in common, which belongs into the axis title.
/// A value; every function is pure arithmetic.
class Axis {
 public:
  /// An axis that reaches `largest` (0 makes it 1), with about `num_ticks` ticks.
  Axis(double largest, int num_ticks, AxisValues values);

  /// The distance of two ticks: 1, 2, 2.5 or 5 times a power of ten.
  double tick_distance() const { return distance_; }

  /// The ticks from 0 to the first one that is not below `largest`.
  std::vector<double> ticks() const;

  /// A tick's number, without the common power of ten.
  std::string label(double tick) const;

  /// `title` with the common power of ten, if there is one: "learning rate (× 10⁻⁴)".
  std::string titled(const std::string& title) const;

 private:
  double largest_ = 1.0;
  double distance_ = 1.0;
  int exponent_ = 0;  // of the common power of ten
  int decimals_ = 0;  // behind the point of a label
};

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `least`; without 2.5 where that would not
/// be a whole number.
double round_distance(double least, AxisValues values);

}  // namespace lockstep
