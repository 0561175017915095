#include "io/hdf5_selection.hpp"

#include <algorithm>

namespace lockstep {

namespace {

const char* const what = "cannot select a part of a dataset";

// Adds the largest box that begins at element `begin` and stays below `end`; returns where it ends.
std::int64_t add_box(hid_t space, const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end,
                     H5S_seloper_t how) {
  const std::size_t num_dimensions = shape.size();
  std::vector<hsize_t> start(num_dimensions);
  std::vector<hsize_t> count(num_dimensions, 1);
  std::int64_t rest = begin;
  for (std::size_t i = num_dimensions; i-- > 0;) {
    start[i] = static_cast<hsize_t>(rest % shape[i]);
    rest /= shape[i];
  }
  // The outermost dimension whose inner ones begin at 0 and fit as a whole.
  std::size_t dimension = num_dimensions - 1;
  std::int64_t inner = 1;
  while (dimension > 0 && start[dimension] == 0 && inner * shape[dimension] <= end - begin) {
    inner *= shape[dimension];
    --dimension;
  }
  for (std::size_t i = dimension + 1; i < num_dimensions; ++i) count[i] = static_cast<hsize_t>(shape[i]);
  const std::int64_t left_here = shape[dimension] - static_cast<std::int64_t>(start[dimension]);
  const std::int64_t wanted = std::min((end - begin) / inner, left_here);
  count[dimension] = static_cast<hsize_t>(wanted);
  check_hdf5(H5Sselect_hyperslab(space, how, start.data(), nullptr, count.data(), nullptr), what);
  return begin + wanted * inner;
}

}  // namespace

void select_range(hid_t space, const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end) {
  if (begin >= end) {
    check_hdf5(H5Sselect_none(space), what);
    return;
  }
  if (shape.empty()) {
    check_hdf5(H5Sselect_all(space), what);
    return;
  }
  H5S_seloper_t how = H5S_SELECT_SET;
  while (begin < end) {
    begin = add_box(space, shape, begin, end, how);
    how = H5S_SELECT_OR;
  }
}

}  // namespace lockstep
