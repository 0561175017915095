#include "runtime/plan/exact.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr int max_digits = 18;

[[noreturn]] void refuse(std::string_view text_given, std::string_view option, const std::string& why) {
  throw Error(ErrorKind::usage, text(option, " is '", text_given, "' (", why, "): write a decimal such as 2.5"));
}

}  // namespace

std::int64_t narrow(Int128 value, std::string_view what) {
  if (value > std::numeric_limits<std::int64_t>::max() || value < std::numeric_limits<std::int64_t>::min()) {
    throw Error(ErrorKind::usage, text(what, " does not fit into 64 bits (more than 9.2e18): ask for less"));
  }
  return static_cast<std::int64_t>(value);
}

std::int64_t product(std::int64_t a, std::int64_t b, std::string_view what) {
  return narrow(static_cast<Int128>(a) * b, what);
}

std::string shortest(double value) {
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), result.ptr);
}

Decimal::Decimal(std::string_view given, std::string_view option) {
  std::string_view mantissa = given;
  int exponent = 0;
  if (const auto e = given.find_first_of("eE"); e != std::string_view::npos) {
    mantissa = given.substr(0, e);
    std::string_view digits = given.substr(e + 1);
    if (!digits.empty() && digits.front() == '+') digits.remove_prefix(1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (digits.empty() || read.ec != std::errc{} || read.ptr != digits.data() + digits.size() || exponent > 18 ||
        exponent < -18) {
      refuse(given, option, "its exponent is no whole number from -18 to 18");
    }
  }
  bool has_digit = false;
  bool has_point = false;
  int num_digits = 0;
  for (const char c : mantissa) {
    if (c == '.' && !has_point) {
      has_point = true;
      continue;
    }
    if (c < '0' || c > '9') refuse(given, option, "it is no non-negative decimal number");
    has_digit = true;
    if (digits_ != 0 || c != '0') ++num_digits;
    if (num_digits > max_digits) refuse(given, option, text("it has more than ", max_digits, " digits"));
    digits_ = digits_ * 10 + (c - '0');
    if (has_point) ++scale_;
  }
  if (!has_digit) refuse(given, option, "it is no non-negative decimal number");
  scale_ -= exponent;
  while (scale_ > 0 && digits_ % 10 == 0) {
    digits_ /= 10;
    --scale_;
  }
  while (scale_ < 0) {
    digits_ = product(digits_, 10, option);
    ++scale_;
  }
  if (scale_ > max_digits) refuse(given, option, text("it has more than ", max_digits, " places"));
}

std::int64_t Decimal::power() const {
  std::int64_t power = 1;
  for (int i = 0; i < scale_; ++i) power *= 10;
  return power;
}

std::int64_t Decimal::floor() const { return digits_ / power(); }

std::int64_t Decimal::ceil_times(std::int64_t n) const {
  const Int128 whole = static_cast<Int128>(digits_) * n;
  return narrow((whole + power() - 1) / power(), "the product with a decimal");
}

std::int64_t Decimal::ceil_fraction_times(std::int64_t n) const {
  const Int128 part = static_cast<Int128>(digits_ % power()) * n;
  return narrow((part + power() - 1) / power(), "the product with a decimal");
}

double Decimal::to_double() const { return static_cast<double>(digits_) / static_cast<double>(power()); }

bool operator==(const Decimal& a, const Decimal& b) { return a.digits_ == b.digits_ && a.scale_ == b.scale_; }

}  // namespace lockstep
