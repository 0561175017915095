#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/element_type.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// Puts evaluate_tree() of runtime/comm/tree_kernel.hpp, for memory of the current device, into `stream`: the same
/// additions in the same order, so the same bits. float32 and float64; `out` may be one of the inputs.
///
/// One pass over memory: each thread takes an element through the whole program, whose temporaries stay with it. The
/// program travels with the launch, so nothing needs to outlive the call. Throws Error(usage) for a program of more
/// inputs than a launch can carry (2048).
void launch_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                 std::int64_t num_elements, std::byte* out, cudaStream_t stream);

}  // namespace lockstep
