#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// How a transfer of `count` elements is cut into calls whose counts fit MPI's int: full pieces of `max_piece`, and
/// the rest. None for a count of 0. A function of its arguments alone, so every rank cuts in the same way.
std::vector<std::int64_t> transfer_pieces(std::int64_t count, std::int64_t max_piece = 2147483647);

}  // namespace lockstep
