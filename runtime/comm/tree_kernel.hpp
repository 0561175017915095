#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/element_type.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// Runs `program` elementwise: out[i] is the root over inputs[0][i], inputs[1][i], ...; zero when there are none.
///
/// One pass over memory: the temporaries of a block of elements stay in the first-level cache. Additions only, one
/// element at a time, so vector width does not change a bit. `type` is float32 or float64; `out` may be an input, and
/// overlaps no other.
void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                   std::int64_t num_elements, std::byte* out);

}  // namespace lockstep
