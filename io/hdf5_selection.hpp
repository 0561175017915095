#pragma once

#include <cstdint>
#include <vector>

#include "io/hdf5_handle.hpp"

namespace lockstep {

/// Selects in `space`, a data space of the given shape, the elements [begin, end) of its row-major order: as a
/// union of at most 2 x rank - 1 boxes. An empty range selects none.
void select_range(hid_t space, const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end);

}  // namespace lockstep
