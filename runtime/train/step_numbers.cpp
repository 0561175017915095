#include "runtime/train/step_numbers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "runtime/plan/node_sums.hpp"
#include "runtime/train/block_squares.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t row_multiple = 8;  // 64 bytes, as an exchange wants its blocks

at::Tensor on(c10::Device device, const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble).to(device, /*non_blocking=*/true);
}

/// The root of the tree over `leaves`, a vector: neighbours are added until one is left. What is added to fill the
/// last pairs changes no bit.
at::Tensor tree_sum(const at::Tensor& leaves) {
  const auto count = static_cast<std::uint64_t>(leaves.numel());
  at::Tensor level = at::full({static_cast<std::int64_t>(std::bit_ceil(count))}, -0.0, leaves.options());
  level.narrow(0, 0, leaves.numel()).copy_(leaves);
  while (level.numel() > 1) {
    level = level.view({-1, 2});
    level = level.select(1, 0).add(level.select(1, 1));
  }
  return level.select(0, 0);
}

}  // namespace

StepNumbers::StepNumbers(const FlatState& state, Communicator& communicator, std::int64_t most_losses)
    : state_(state), communicator_(communicator) {
  const int num_ranks = communicator_.num_ranks();
  row_size_ = most_losses;
  for (const FlatGroup& group : state_.groups()) {
    groups_.push_back({row_size_, {}, {}});
    row_size_ += share_of(group.layout.num_blocks, num_ranks, 0).size();  // nobody has more
  }
  row_size_ = (row_size_ + row_multiple - 1) / row_multiple * row_multiple;
  exchange_ = communicator_.make_exchange({ElementType::float64, num_ranks, row_size_, /*num_slots=*/0});
  all_rows_ = view_of(exchange_->weights(), {num_ranks, row_size_}, at::kDouble, state_.device());
  own_row_ = all_rows_.select(0, communicator_.rank());

  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const FlatGroup& flat = state_.groups()[g];
    for (int rank = 0; rank < num_ranks; ++rank) {
      const LeafRange blocks = share_of(flat.layout.num_blocks, num_ranks, rank);
      for (std::int64_t block = blocks.begin; block < std::min(blocks.end, flat.parameter_blocks); ++block)
        groups_[g].indices.push_back(rank * row_size_ + groups_[g].first + block - blocks.begin);
    }
    groups_[g].on_device = at::tensor(groups_[g].indices, at::kLong).to(state_.device());
  }
}

void StepNumbers::gather(const std::vector<at::Tensor>& losses, const std::vector<double>& weights,
                         const std::vector<at::Tensor>& slices) {
  own_row_.zero_();
  if (!losses.empty())
    own_row_.narrow(0, 0, static_cast<std::int64_t>(losses.size()))
        .copy_(at::stack(losses).to(at::kDouble).mul(on(state_.device(), weights)));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const at::Tensor squares = block_squares(slices[g], state_.groups()[g].layout.block_elements);
    own_row_.narrow(0, groups_[g].first, squares.numel()).copy_(squares);
  }
  exchange_->publish_weights();
}

at::Tensor StepNumbers::all_finite() const { return at::isfinite(all_rows_).all(); }

at::Tensor StepNumbers::sum_of_squares() const {
  at::Tensor sum = at::zeros({}, all_rows_.options());
  for (const Group& group : groups_)
    if (!group.indices.empty()) sum = sum.add(tree_sum(all_rows_.view({-1}).index_select(0, group.on_device)));
  return sum;
}

void StepNumbers::fetch() {
  if (state_.device().is_cpu()) {
    fetches_.push_back({all_rows_.clone(), [] { return true; }});
    return;
  }
  const at::Tensor numbers = at::empty(all_rows_.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  numbers.copy_(all_rows_, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl streams(state_.device().type());
  const auto copied = std::make_shared<c10::Event>(state_.device().type());
  copied->record(streams.getStream(state_.device()));
  fetches_.push_back({numbers, [copied] { return copied->query(); }});
}

StepNumbers::Fetched StepNumbers::take() {
  communicator_.wait_until(fetches_.front().is_there);
  Fetched fetched = std::move(fetches_.front());
  fetches_.pop_front();
  return fetched;
}

bool StepNumbers::all_finite(const Fetched& fetched) const {
  const double* const numbers = fetched.numbers.const_data_ptr<double>();
  return std::all_of(numbers, numbers + fetched.numbers.numel(), [](double number) { return std::isfinite(number); });
}

double StepNumbers::loss(const Fetched& fetched, int rank, std::int64_t index) const {
  return fetched.numbers.const_data_ptr<double>()[rank * row_size_ + index];
}

double StepNumbers::sum_of_squares(const Fetched& fetched) const {
  double sum = 0.0;
  for (const Group& group : groups_) {
    const auto num_blocks = static_cast<std::int64_t>(group.indices.size());
    NodeSums squares(num_blocks, {0, num_blocks});
    for (const std::int64_t index : group.indices) squares.add(fetched.numbers.const_data_ptr<double>()[index]);
    if (num_blocks > 0) sum += squares.values().front();
  }
  return sum;
}

}  // namespace lockstep
