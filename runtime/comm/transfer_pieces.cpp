#include "runtime/comm/transfer_pieces.hpp"

#include <algorithm>
#include <stdexcept>

namespace lockstep {

std::vector<std::int64_t> transfer_pieces(std::int64_t count, std::int64_t max_piece) {
  if (count < 0 || max_piece < 1) throw std::logic_error("a transfer was given a negative size");
  std::vector<std::int64_t> pieces;
  for (; count > 0; count -= pieces.back()) pieces.push_back(std::min(count, max_piece));
  return pieces;
}

}  // namespace lockstep
