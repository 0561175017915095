#include "drivers/checkpoint_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

/// Characters of a UTF-8 text: bytes that do not continue one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

template <class... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 64> digits;
  std::snprintf(digits.data(), digits.size(), format, values...);
  return digits.data();
}

std::string plain(std::int64_t value, std::size_t) { return std::to_string(value); }
std::string plain(double value, std::size_t) { return shortest(value); }
std::string plain(const std::string& value, std::size_t) { return value; }

template <class T>
std::string plain(const std::vector<T>& values, std::size_t most) {
  if (values.empty()) return "none";
  std::string list;
  for (std::size_t i = 0; i < std::min(values.size(), most); ++i)
    list += (i == 0 ? "" : ", ") + plain(values[i], most);
  if (values.size() > most) list += ", ... (" + count_text(static_cast<std::int64_t>(values.size())) + " in all)";
  return list;
}

}  // namespace

std::string AlignedTable::text() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(width_of(column.title));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string lines;
  const auto add_line = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      line += "  " + (columns_[i].side == Side::left ? row[i] + padding : padding + row[i]);
    }
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return lines;
}

std::string count_text(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
}

std::string bytes_text(std::uint64_t num_bytes) {
  if (num_bytes < 1000) return std::to_string(num_bytes) + " bytes";
  constexpr std::array units = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double size = static_cast<double>(num_bytes) / 1000;
  std::size_t unit = 0;
  for (; size >= 999.95 && unit + 1 < units.size(); ++unit) size /= 1000;
  return printed("%.1f %s", size, units[unit]);
}

std::string number_text(double value) { return printed("%.5g", value); }

std::string value_text(const AttributeValue& value, std::size_t most) {
  return std::visit([most](const auto& held) { return plain(held, most); }, value);
}

}  // namespace lockstep
