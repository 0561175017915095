#include "runtime/train/step_exchange.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

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

void complete(StepTotals& totals, double loss, double weight, double squares, bool others_finite) {
  totals.loss = weight == 0.0 ? 0.0 : loss / weight;
  totals.loss_finite = std::isfinite(totals.loss);
  totals.gradient_norm = std::sqrt(squares) * totals.gradient_factor;
  totals.finite = others_finite && std::isfinite(squares) && totals.loss_finite;
}

}  // namespace

StepExchange::StepExchange(FlatState& state, const GradientBuckets& buckets, Communicator& communicator,
                           std::int64_t most_micro_batches)
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
  if (state_.overlaps()) numbers_.emplace(state_, communicator_, most_micro_batches);
}

const TreeProgram& StepExchange::program_for(const BatchPlan& plan, const StepPlan& step) {
  std::vector<LeafRange> shares;
  std::vector<std::int64_t> ends;
  micro_batches_of_rank_.clear();
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank) {
    shares.push_back(plan.share_at(step.first_sample, step.num_samples, rank).micro_batches);
    ends.push_back(shares.back().end);
    micro_batches_of_rank_.push_back(shares.back().size());
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

void StepExchange::reduce_gradients() {
  while (num_started_ < buckets_.buckets().size()) start(buckets_.buckets()[num_started_]);
  for (std::size_t g = 0; g < slices_.size(); ++g)
    state_.groups()[g].exchange->reduce_slice(*program_, static_cast<std::byte*>(slices_[g].data_ptr()));
}

StepScalars StepExchange::scalars_of(const MicroBatchSums& sums, const StepFlags& flags) const {
  StepScalars mine;
  mine.has_failed = sums.failure.has_value();
  mine.flags = flags;
  mine.loss_kind = sums.loss_kind;
  mine.sample_mark = sums.sample_mark;
  mine.counter_counts = sums.counter_counts;
  NodeSums weights(num_micro_batches_, sums.share);
  for (const double weight : sums.weights) weights.add(weight);
  mine.weights = weights.values();
  mine.losses.assign(mine.weights.size(), 0.0);
  return mine;
}

void StepExchange::add_losses_and_squares(StepScalars& mine, const MicroBatchSums& sums) const {
  NodeSums losses(num_micro_batches_, sums.share);
  for (std::size_t i = 0; i < sums.losses.size(); ++i) {
    const double loss = sums.losses[i].item<double>();
    losses.add(sums.loss_kind == LossKind::weighted ? loss : loss * sums.weights[i]);
  }
  mine.losses = losses.values();

  for (std::size_t g = 0; g < slices_.size(); ++g) {
    const FlatGroup& group = state_.groups()[g];
    const std::int64_t num_blocks = slices_[g].numel() / group.layout.block_elements;
    const std::vector<double> sums_of_blocks =
        block_squares_on_host(slices_[g], num_blocks, group.layout.block_elements);
    const LeafRange blocks = parameter_blocks_of(group, communicator_.num_ranks(), communicator_.rank());
    NodeSums squares(group.parameter_blocks, blocks);
    auto next = sums_of_blocks.begin();
    for (std::int64_t block = 0; block < blocks.size(); ++block) squares.add(*next++);
    mine.squares.push_back(squares.values());
    // Of the buffers' blocks only this is asked.
    mine.buffers_finite &= std::all_of(next, sums_of_blocks.end(), [](double sum) { return std::isfinite(sum); });
  }
}

StepScalars StepExchange::combine(const StepScalars& mine, const MicroBatchSums& sums,
                                  const std::vector<TreeProgram>& norms) {
  StepScalars all = combine_scalars(communicator_, mine, *program_, norms);
  if (all.has_failed)
    agree(communicator_, [&] {
      if (sums.failure) throw *sums.failure;
      if (sums.loss_kind != LossKind::none && sums.loss_kind != all.loss_kind)
        throw Error(ErrorKind::do_not_requeue,
                    "the loss function gave a mean on one rank and a weighted sum on another (they cannot be added "
                    "up): always return the same kind");
    });
  return all;
}

StepTotals StepExchange::totals_of(const StepScalars& all, double loss_scale) const {
  const double weight = program_->evaluate(all.weights);
  double mean_factor = buffer_factor_;
  if (all.loss_kind == LossKind::weighted) mean_factor = weight == 0.0 ? 0.0 : 1.0 / weight;
  StepTotals totals;
  totals.gradient_factor = mean_factor / loss_scale;
  totals.buffer_factor = buffer_factor_;
  totals.counter_counts = all.counter_counts;
  totals.sample_mark = all.sample_mark;
  totals.flags = all.flags;
  return totals;
}

StepTotals StepExchange::reduce(const MicroBatchSums& sums, double loss_scale, const StepFlags& flags) {
  reduce_gradients();
  StepScalars mine = scalars_of(sums, flags);
  add_losses_and_squares(mine, sums);
  const StepScalars all = combine(mine, sums, norm_programs_);
  double squares = 0.0;
  for (std::size_t g = 0; g < norm_programs_.size(); ++g) squares += norm_programs_[g].evaluate(all.squares[g]);
  StepTotals totals = totals_of(all, loss_scale);
  complete(totals, program_->evaluate(all.losses), program_->evaluate(all.weights), squares, all.buffers_finite);
  return totals;
}

StepTotals StepExchange::launch(const MicroBatchSums& sums, double loss_scale, const StepFlags& flags) {
  reduce_gradients();
  const bool is_weighted = sums.loss_kind == LossKind::weighted;
  numbers_->gather(sums.losses, is_weighted ? std::vector<double>(sums.losses.size(), 1.0) : sums.weights, slices_);
  const StepScalars all = combine(scalars_of(sums, flags), sums, {});
  numbers_->fetch();
  launched_.push_back({micro_batches_of_rank_, program_->evaluate(all.weights)});
  return totals_of(all, loss_scale);
}

void StepExchange::settle(StepTotals& totals) {
  const StepNumbers::Fetched numbers = numbers_->take();
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  const std::vector<std::int64_t>& counts = step.micro_batches_of_rank;
  const std::int64_t num_losses = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  NodeSums losses(num_losses, {0, num_losses});
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank)
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i)
      losses.add(numbers_->loss(numbers, rank, i));
  complete(totals, losses.values().front(), step.weight, numbers_->sum_of_squares(numbers),
           numbers_->all_finite(numbers));
}

void StepExchange::forget() {
  numbers_->forget();
  launched_.clear();
}

}  // namespace lockstep
