#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// Products of two 64-bit numbers without loss.
__extension__ typedef __int128 Int128;

/// floor(a / b) and ceil(a / b) of a >= 0, b > 0.
constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b; }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// `value` as a 64-bit number. Throws Error(usage) that names `what` when it does not fit.
std::int64_t narrow(Int128 value, std::string_view what);

/// a x b. Throws Error(usage) that names `what` when the product does not fit into 64 bits.
std::int64_t product(std::int64_t a, std::int64_t b, std::string_view what);

/// The fewest digits that read back as the same number: 0.1, 1e-07.
std::string shortest(double value);

/// A decimal number exactly as written: 0.07 x 100 is 7, where binary fractions would say a little more.
///
/// Non-negative, at most 18 significant digits. Value = digits / 10^scale.
class Decimal {
 public:
  /// Reads "6", "2.5", ".5", "1e-3". Throws Error(usage) that names `option` and the text.
  Decimal(std::string_view text, std::string_view option);

  std::int64_t floor() const;

  /// ceil(value x n) and ceil((value - floor(value)) x n), exact.
  std::int64_t ceil_times(std::int64_t n) const;
  std::int64_t ceil_fraction_times(std::int64_t n) const;

  bool is_zero() const { return digits_ == 0; }
  double to_double() const;

  /// By value: 2.5 equals 2.50.
  friend bool operator==(const Decimal& a, const Decimal& b);

 private:
  std::int64_t power() const;  ///< 10^scale

  std::int64_t digits_ = 0;
  int scale_ = 0;
};

}  // namespace lockstep
