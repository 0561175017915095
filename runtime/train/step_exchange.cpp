#include "runtime/train/step_exchange.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "runtime/plan/error.hpp"
#include "runtime/plan/node_sums.hpp"
#include "runtime/train/block_squares.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

/// The blocks of parameters that `rank` owns.
LeafRange parameter_blocks_of(const FlatGroup& group, int num_ranks, int rank) {
  const LeafRange blocks = share_of(group.layout.num_blocks, num_ranks, rank);
  return {std::min(blocks.begin, group.parameter_blocks), std::min(blocks.end, group.parameter_blocks)};
}

}  // namespace

StepExchange::StepExchange(FlatState& state, const GradientBuckets& buckets, Communicator& communicator)
    : state_(state), buckets_(buckets), communicator_(communicator) {
  for (const FlatGroup& group : state_.groups()) {
    // Nobody else reads this part of the first slot, and it is in the cache.
    slices_.push_back(group.exchange->is_read_in_place()
                          ? group.slots[0].narrow(0, group.slice().begin, group.slice().size())
                          : at::zeros({group.slice().size()}, group.weights.options()));
    std::vector<LeafRange> shares;
    for (int rank = 0; rank < communicator_.num_ranks(); ++rank)
      shares.push_back(parameter_blocks_of(group, communicator_.num_ranks(), rank));
    norm_programs_.push_back(make_tree_program(group.parameter_blocks, shares));
  }
}

const TreeProgram& StepExchange::program_for(const BatchPlan& plan, const StepPlan& step) {
  std::vector<LeafRange> shares;
  std::vector<std::int64_t> ends;
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank) {
    shares.push_back(plan.share_at(step.first_sample, step.num_samples, rank).micro_batches);
    ends.push_back(shares.back().end);
  }
  const auto found = programs_.find(ends);
  if (found != programs_.end()) return found->second;
  return programs_.emplace(ends, make_tree_program(step.num_micro_batches, shares)).first->second;
}

void StepExchange::begin(const BatchPlan& plan, const StepPlan& step) {
  program_ = &program_for(plan, step);
  num_micro_batches_ = step.num_micro_batches;
  buffer_factor_ = static_cast<double>(plan.micro_batch_size) / static_cast<double>(step.num_samples);
  num_started_ = 0;
}

void StepExchange::start(const Bucket& bucket) {
  ++num_started_;
  FlatExchange& exchange = *state_.groups()[bucket.group].exchange;
  if (exchange.overlaps())
    exchange.start_reduce(*program_, bucket.range, static_cast<std::byte*>(slices_[bucket.group].data_ptr()));
}

std::vector<double> StepExchange::losses_and_squares(const MicroBatchSums& sums) {
  const auto num_blocks = [this](std::size_t g) {
    return slices_[g].numel() / state_.groups()[g].layout.block_elements;
  };
  if (state_.device().is_cpu()) {
    std::vector<double> numbers;
    for (const at::Tensor& loss : sums.losses) numbers.push_back(loss.item<double>());
    for (std::size_t g = 0; g < slices_.size(); ++g)
      for (const double sum :
           block_squares_on_host(slices_[g], num_blocks(g), state_.groups()[g].layout.block_elements))
        numbers.push_back(sum);
    return numbers;
  }
  std::vector<at::Tensor> on_device;
  if (!sums.losses.empty()) on_device.push_back(at::stack(sums.losses).to(at::kDouble));
  for (std::size_t g = 0; g < slices_.size(); ++g)
    on_device.push_back(block_squares_on_device(slices_[g], num_blocks(g), state_.groups()[g].layout.block_elements));
  communicator_.wait_for_device();
  const at::Tensor numbers = at::cat(on_device).cpu();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

StepScalars StepExchange::scalars_of(const MicroBatchSums& sums, const StepFlags& flags) {
  const std::vector<double> numbers = losses_and_squares(sums);
  auto next = numbers.begin();
  StepScalars mine;
  mine.has_failed = sums.failure.has_value();
  mine.flags = flags;
  mine.loss_kind = sums.loss_kind;
  mine.sample_mark = sums.sample_mark;
  mine.counter_counts = sums.counter_counts;

  NodeSums losses(num_micro_batches_, sums.share);
  NodeSums weights(num_micro_batches_, sums.share);
  for (const double weight : sums.weights) {
    const double loss = *next++;
    losses.add(sums.loss_kind == LossKind::weighted ? loss : loss * weight);
    weights.add(weight);
  }
  mine.losses = losses.values();
  mine.weights = weights.values();

  for (std::size_t g = 0; g < slices_.size(); ++g) {
    const FlatGroup& group = state_.groups()[g];
    const LeafRange blocks = parameter_blocks_of(group, communicator_.num_ranks(), communicator_.rank());
    NodeSums squares(group.parameter_blocks, blocks);
    for (std::int64_t block = 0; block < blocks.size(); ++block) squares.add(*next++);
    mine.squares.push_back(squares.values());
    // Of the buffers' blocks only this is asked.
    const std::int64_t num_blocks = slices_[g].numel() / group.layout.block_elements;
    for (std::int64_t block = blocks.size(); block < num_blocks; ++block)
      mine.buffers_finite &= std::isfinite(*next++);
  }
  return mine;
}

StepTotals StepExchange::totals_of(const StepScalars& all, double loss_scale) const {
  const double weight = program_->evaluate(all.weights);
  double mean_factor = buffer_factor_;
  if (all.loss_kind == LossKind::weighted) mean_factor = weight == 0.0 ? 0.0 : 1.0 / weight;
  double squares = 0.0;
  for (std::size_t g = 0; g < norm_programs_.size(); ++g) squares += norm_programs_[g].evaluate(all.squares[g]);

  StepTotals totals;
  totals.loss = weight == 0.0 ? 0.0 : program_->evaluate(all.losses) / weight;
  totals.loss_finite = std::isfinite(totals.loss);
  totals.gradient_factor = mean_factor / loss_scale;
  totals.gradient_norm = std::sqrt(squares) * totals.gradient_factor;
  totals.finite = all.buffers_finite && std::isfinite(squares) && totals.loss_finite;
  totals.buffer_factor = buffer_factor_;
  totals.counter_counts = all.counter_counts;
  totals.sample_mark = all.sample_mark;
  totals.flags = all.flags;
  return totals;
}

StepTotals StepExchange::reduce(const MicroBatchSums& sums, double loss_scale, const StepFlags& flags) {
  while (num_started_ < buckets_.buckets().size()) start(buckets_.buckets()[num_started_]);
  for (std::size_t g = 0; g < slices_.size(); ++g)
    state_.groups()[g].exchange->reduce_slice(*program_, static_cast<std::byte*>(slices_[g].data_ptr()));
  const StepScalars all = combine_scalars(communicator_, scalars_of(sums, flags), *program_, norm_programs_);
  if (all.has_failed)
    agree(communicator_, [&] {
      if (sums.failure) throw *sums.failure;
      if (sums.loss_kind != LossKind::none && sums.loss_kind != all.loss_kind)
        throw Error(ErrorKind::do_not_requeue,
                    "the loss function gave a mean on one rank and a weighted sum on another (they cannot be added "
                    "up): always return the same kind");
    });
  return totals_of(all, loss_scale);
}

}  // namespace lockstep
