#pragma once

#include <string>

namespace lockstep {

/// "[32, 1, 3, 3]": the extents of a shape in messages; "[]" for a single number.
template <class Extents>
std::string shape_text(const Extents& extents) {
  std::string list;
  for (const auto extent : extents) list += (list.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + list + "]";
}

}  // namespace lockstep
