#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Sets the subnormal numbers (those nearer to zero than the smallest normal one) of a contiguous float32 or float64
/// tensor in host memory to zero.
///
/// A moment whose gradient is zero from some step on, as those of a unit that ReLU has switched off, shrinks by a
/// factor a step until it is subnormal, and there it stays: rounding takes it up again. Processors compute with such
/// numbers many times more slowly.
void clear_subnormals(const at::Tensor& tensor);

}  // namespace lockstep
