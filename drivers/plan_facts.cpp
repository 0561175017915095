#include "drivers/plan_facts.hpp"

#include <algorithm>
#include <limits>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

/// Collects the ranks' parts of an epoch.
class LoadSum {
 public:
  void add(std::int64_t samples, std::int64_t micro_batches) {
    widen(load_.samples, samples);
    widen(load_.micro_batches, micro_batches);
    work_ += static_cast<double>(micro_batches);
  }

  /// `busiest` is the sum, over the epoch's steps, of the micro-batches of the rank that has most in the step.
  EpochLoad finished(std::int64_t busiest, std::int64_t num_ranks) {
    if (busiest > 0) load_.utilization = work_ / (static_cast<double>(busiest) * static_cast<double>(num_ranks));
    return load_;
  }

 private:
  static void widen(Extent& extent, std::int64_t number) {
    extent.least = std::min(extent.least, number);
    extent.most = std::max(extent.most, number);
  }

  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  EpochLoad load_{{kNone, 0}, {kNone, 0}, 1.0};
  double work_ = 0.0;
};

/// Data that shards itself: each rank takes the same number of its own samples in a step, the last one fewer.
EpochLoad sharded_load(const BatchPlan& batch) {
  const std::int64_t rank_batch = batch.global_batch_size / batch.num_ranks;
  LoadSum sum;
  std::int64_t busiest = 0;
  for (const std::int64_t own : batch.samples_of_rank) {
    const std::int64_t tail = batch.drop_last ? 0 : own % rank_batch;
    const std::int64_t micro_batches =
        own / rank_batch * batch.num_micro_batches(rank_batch) + batch.num_micro_batches(tail);
    sum.add(own / rank_batch * rank_batch + tail, micro_batches);
    busiest = std::max(busiest, micro_batches);
  }
  return sum.finished(busiest, batch.num_ranks);
}

}  // namespace

std::optional<EpochLoad> epoch_load(const BatchPlan& batch) {
  if (!batch.has_length()) return std::nullopt;
  if (batch.is_sharded()) return sharded_load(batch);
  const std::int64_t full_steps = batch.used_samples() / batch.global_batch_size;
  const std::int64_t tail = batch.used_samples() % batch.global_batch_size;
  LoadSum sum;
  for (int rank = 0; rank < batch.num_ranks; ++rank) {
    const StepShare full = batch.share_at(0, batch.global_batch_size, rank);
    const StepShare last = batch.share_at(0, tail, rank);
    sum.add(full_steps * full.num_samples + last.num_samples,
            full_steps * full.micro_batches.size() + last.micro_batches.size());
  }
  const std::int64_t busiest =
      full_steps * batch.accumulation_steps() + ceil_div(batch.num_micro_batches(tail), batch.num_ranks);
  return sum.finished(busiest, batch.num_ranks);
}

}  // namespace lockstep
