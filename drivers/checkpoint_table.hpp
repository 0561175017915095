#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "drivers/checkpoint_numbers.hpp"
#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// Where a column's texts are set.
enum class Side { left, right };

/// A table for a terminal: each column as wide as its widest text (counted in characters, not in bytes), texts to
/// the left and numbers to the right, as its heading says.
class AlignedTable {
 public:
  struct Column {
    std::string title;
    Side side = Side::left;
  };

  explicit AlignedTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// A row of as many texts as there are columns.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }

  /// Title and rows, each indented by two spaces and ended by a newline.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string count_text(std::int64_t number);                                ///< 1234567 as "1,234,567"
std::string bytes_text(std::uint64_t num_bytes);                            ///< "9.7 MB", "512 bytes"
std::string number_text(double value);                                      ///< five digits: "-0.012346", "3.2e-07"
std::string value_text(const AttributeValue& value, std::size_t most = 8);  ///< exact; of a list the first `most`

}  // namespace lockstep
