// The kernel of the gradient tree: the bits of the same additions on the host.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>

#include "runtime/comm/tree_kernel.hpp"
#include "runtime/train/tensor_types.hpp"
#include "tests/gpu/on_device.hpp"

namespace lockstep::test {
namespace {

class TreeKernel : public OnDevice {};

/// Far-apart magnitudes and both signs, so that any other order gives other bits.
at::Tensor scattered(std::int64_t count, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  return (at::rand({count}, options) - 0.5) * at::pow(2.0, (at::rand({count}, options) * 24 - 12).floor());
}

/// The sums of `program` over random inputs, by the device and by the host.
void expect_same_bits(const OneDevice& one, const TreeProgram& program, ElementType type, std::int64_t count) {
  DeviceApi& device = *one.api;
  const at::ScalarType scalar = scalar_type_of(type);
  std::vector<at::Tensor> on_host;
  std::vector<const std::byte*> host_inputs;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::vector<const std::byte*> inputs;
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  for (int i = 0; i < program.num_inputs; ++i) {
    on_host.push_back(scattered(count, scalar));
    host_inputs.push_back(static_cast<const std::byte*>(on_host.back().const_data_ptr()));
    buffers.push_back(std::make_unique<DeviceBuffer>(device, bytes));
    view_of(buffers.back()->data(), {count}, scalar, one.where).copy_(on_host.back());
    inputs.push_back(buffers.back()->data());
  }
  const at::Tensor expected = at::empty({count}, scalar);
  evaluate_tree(program, type, host_inputs, count, static_cast<std::byte*>(expected.data_ptr()));
  const DeviceBuffer out(device, bytes);
  device.evaluate_tree(program, type, inputs, count, out.data());
  const auto done = device.make_event();
  device.record(*done, DeviceQueue::transfer);
  while (!device.is_done(*done)) {
  }
  EXPECT_TRUE(at::equal(view_of(out.data(), {count}, scalar, one.where).cpu(), expected))
      << program.num_inputs << " inputs of " << count << ' ' << name_of(type);
}

TEST_F(TreeKernel, AddsInTheOrderOfTheTree) {
  const OneDevice device = make_device(session());
  const std::vector<std::pair<int, int>> leaves_and_ranks = {{2, 2},   {7, 3},    {32, 5},
                                                             {100, 7}, {129, 64}, {1000, 190}};
  for (const ElementType type : {ElementType::float32, ElementType::float64})
    for (const auto& [num_leaves, num_ranks] : leaves_and_ranks) {
      std::vector<LeafRange> shares;
      for (int rank = 0; rank < num_ranks; ++rank) shares.push_back(share_of(num_leaves, num_ranks, rank));
      const TreeProgram program = make_tree_program(num_leaves, shares);
      for (const std::int64_t count : {1, 255, 4099}) expect_same_bits(device, program, type, count);
    }
}

}  // namespace
}  // namespace lockstep::test
