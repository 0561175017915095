#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

/// The sum of squares of each of the first `num_blocks` blocks of a flat float32 or float64 tensor in host memory, in
/// double. The order within a block is fixed, so the bits do not know how many blocks are asked for.
std::vector<double> block_squares_on_host(const at::Tensor& flat, std::int64_t num_blocks,
                                          std::int64_t block_elements);

/// The same on the tensor's device, as a float64 tensor there; does not wait for it. `block_elements` is a power of
/// two. Another order than on the host, as fixed: halves are added elementwise until one is left, so that no
/// reduction kernel's choice of an order can change a bit.
at::Tensor block_squares_on_device(const at::Tensor& flat, std::int64_t num_blocks, std::int64_t block_elements);

/// Of all blocks, where the tensor is, in its order.
at::Tensor block_squares(const at::Tensor& flat, std::int64_t block_elements);

}  // namespace lockstep
