#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// Copies `from` to memory that other ranks read where it lies, past the caches of this one. `kept`: the elements
/// that this rank alone reads, and before long; they are copied the ordinary way. `from` and `to` have the same
/// number of elements, are contiguous, of one type, and in host memory.
void copy_for_others(const at::Tensor& from, const at::Tensor& to, Slice kept = {});

}  // namespace lockstep
