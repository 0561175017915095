#include "runtime/train/block_squares.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

/// In eight fixed lanes of double, so that compilers may use vectors and no float32 value can overflow the sum.
template <class T>
[[gnu::always_inline]] inline double sum_in_lanes(const T* values, std::int64_t count) {
  std::array<double, 8> lanes{};
  for (std::int64_t i = 0; i < count; i += 8)
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const auto value = static_cast<double>(values[i + static_cast<std::int64_t>(lane)]);
      lanes[lane] += value * value;
    }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// The wider instructions hold more lanes at once; each lane's additions, and so the bits, are the same.
[[gnu::target_clones("avx2", "default")]] double sum_of_squares(const float* values, std::int64_t count) {
  return sum_in_lanes(values, count);
}

[[gnu::target_clones("avx2", "default")]] double sum_of_squares(const double* values, std::int64_t count) {
  return sum_in_lanes(values, count);
}

}  // namespace

std::vector<double> block_squares_on_host(const at::Tensor& flat, std::int64_t num_blocks,
                                          std::int64_t block_elements) {
  std::vector<double> sums;
  for (std::int64_t i = 0; i < num_blocks; ++i)
    sums.push_back(flat.scalar_type() == at::kFloat
                       ? sum_of_squares(flat.const_data_ptr<float>() + i * block_elements, block_elements)
                       : sum_of_squares(flat.const_data_ptr<double>() + i * block_elements, block_elements));
  return sums;
}

at::Tensor block_squares_on_device(const at::Tensor& flat, std::int64_t num_blocks, std::int64_t block_elements) {
  constexpr std::int64_t most_elements = std::int64_t{1} << 24;  // 128 MiB of temporaries at a time
  const std::int64_t most_blocks = std::max<std::int64_t>(1, most_elements / block_elements);
  const at::Tensor sums = at::empty({num_blocks}, flat.options().dtype(at::kDouble));
  for (std::int64_t begin = 0; begin < num_blocks; begin += most_blocks) {
    const std::int64_t count = std::min(most_blocks, num_blocks - begin);
    at::Tensor part =
        flat.narrow(0, begin * block_elements, count * block_elements).view({count, block_elements}).to(at::kDouble);
    part = part.mul(part);
    for (std::int64_t half = block_elements / 2; half > 0; half /= 2)
      part = part.narrow(1, 0, half).add(part.narrow(1, half, half));
    sums.narrow(0, begin, count).copy_(part.view({count}));
  }
  return sums;
}

at::Tensor block_squares(const at::Tensor& flat, std::int64_t block_elements) {
  const std::int64_t num_blocks = flat.numel() / block_elements;
  return flat.is_cpu() ? at::tensor(block_squares_on_host(flat, num_blocks, block_elements), at::kDouble)
                       : block_squares_on_device(flat, num_blocks, block_elements);
}

}  // namespace lockstep
