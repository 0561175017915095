#include "drivers/plan_axis.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace lockstep {
namespace {

constexpr double kSlack = 1e-9;  // relative: 0.3 / 0.1 is 3

int power_of_ten(double value) { return static_cast<int>(std::floor(std::log10(value) + kSlack)); }

std::string superscript(int number) {
  static const std::array<const char*, 10> digits = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string written;
  for (const char digit : std::to_string(number)) {
    written += digit == '-' ? "⁻" : digits[static_cast<std::size_t>(digit - '0')];
  }
  return written;
}

}  // namespace

double round_distance(double least, AxisValues values) {
  const double power = std::pow(10.0, power_of_ten(least));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    const double distance = factor * power;
    if (values == AxisValues::whole_numbers && distance != std::floor(distance)) continue;
    if (distance >= least * (1.0 - kSlack)) return distance;
  }
  return 10.0 * power;
}

Axis::Axis(double largest, int num_ticks, AxisValues values) : largest_(largest > 0.0 ? largest : 1.0) {
  const double least = largest_ / std::max(num_ticks, 1);
  distance_ = round_distance(values == AxisValues::whole_numbers ? std::max(least, 1.0) : least, values);
  const int power = power_of_ten(largest_);
  if (power >= 5) exponent_ = power - power % 3;
  if (power < -1) exponent_ = power;
  const double scaled = distance_ / std::pow(10.0, exponent_);
  while (decimals_ < 9 && std::abs(std::remainder(scaled * std::pow(10.0, decimals_), 1.0)) > 1e-6) ++decimals_;
}

std::vector<double> Axis::ticks() const {
  const auto last = static_cast<int>(std::ceil(largest_ / distance_ * (1.0 - kSlack)));
  std::vector<double> ticks;
  for (int i = 0; i <= last; ++i) ticks.push_back(i * distance_);
  return ticks;
}

std::string Axis::label(double tick) const {
  std::array<char, 64> written;
  std::snprintf(written.data(), written.size(), "%.*f", decimals_, tick / std::pow(10.0, exponent_));
  return written.data();
}

std::string Axis::titled(const std::string& title) const {
  return exponent_ == 0 ? title : title + " (× 10" + superscript(exponent_) + ")";
}

}  // namespace lockstep
