#include "runtime/plan/batch_plan.hpp"

#include <algorithm>

#include "runtime/plan/exact.hpp"

namespace lockstep {

std::int64_t BatchPlan::steps_per_epoch() const { return has_length() ? steps_between(0, num_samples) : 0; }

std::int64_t BatchPlan::used_samples() const { return has_length() ? samples_between(0, num_samples) : 0; }

std::int64_t BatchPlan::steps_between(std::int64_t begin, std::int64_t end) const {
  if (end <= begin) return 0;
  if (!is_sharded()) {
    return drop_last ? floor_div(end - begin, global_batch_size) : ceil_div(end - begin, global_batch_size);
  }
  const std::int64_t first = sharded_step_at(begin);
  std::int64_t last = sharded_step_at(std::min(end, position_after(num_samples)));
  if (drop_last && position_after(last) > end) --last;
  return std::max<std::int64_t>(0, last - first);
}

std::int64_t BatchPlan::samples_between(std::int64_t begin, std::int64_t end) const {
  const std::int64_t steps = steps_between(begin, end);
  if (steps == 0) return 0;
  if (is_sharded()) return position_after(sharded_step_at(begin) + steps) - begin;
  return drop_last ? steps * global_batch_size : end - begin;
}

std::int64_t BatchPlan::samples_of_step(std::int64_t sample_in_epoch) const {
  if (!has_length()) return global_batch_size;
  if (is_sharded()) return position_after(sharded_step_at(sample_in_epoch) + 1) - sample_in_epoch;
  return std::min(global_batch_size, num_samples - sample_in_epoch);
}

std::int64_t BatchPlan::num_micro_batches(std::int64_t samples) const { return ceil_div(samples, micro_batch_size); }

std::int64_t BatchPlan::num_micro_batches_at(std::int64_t sample_in_epoch, std::int64_t samples) const {
  if (!is_sharded()) return num_micro_batches(samples);
  return share_at(sample_in_epoch, samples, num_ranks - 1).micro_batches.end;
}

LeafRange BatchPlan::share(std::int64_t samples, int rank) const {
  return share_of(num_micro_batches(samples), num_ranks, rank);
}

StepShare BatchPlan::share_at(std::int64_t sample_in_epoch, std::int64_t samples, int rank) const {
  StepShare result;
  if (!is_sharded()) {
    result.micro_batches = share(samples, rank);
    const std::int64_t begin = std::min(samples, result.micro_batches.begin * micro_batch_size);
    const std::int64_t end = std::min(samples, result.micro_batches.end * micro_batch_size);
    result.first_sample = sample_in_epoch + begin;
    result.num_samples = end - begin;
    return result;
  }
  const std::int64_t own_begin = sharded_step_at(sample_in_epoch) * rank_batch();
  std::int64_t offset = 0;
  for (std::size_t r = 0; r <= static_cast<std::size_t>(rank); ++r) {
    const std::int64_t begin = std::min(own_begin, used_of_rank(r));
    const std::int64_t count = std::min(rank_batch(), used_of_rank(r) - begin);
    result.micro_batches.begin = result.micro_batches.end;
    result.micro_batches.end += num_micro_batches(count);
    result.first_sample = offset + begin;
    result.num_samples = count;
    offset += samples_of_rank[r];
  }
  return result;
}

std::vector<SampleRange> BatchPlan::ranges_of_step(std::int64_t sample_in_epoch, std::int64_t samples) const {
  if (!is_sharded()) return {{sample_in_epoch, sample_in_epoch + samples}};
  std::vector<SampleRange> ranges;
  const std::int64_t own_begin = sharded_step_at(sample_in_epoch) * rank_batch();
  std::int64_t offset = 0;
  for (std::size_t rank = 0; rank < samples_of_rank.size(); ++rank) {
    const std::int64_t end = std::min(own_begin + rank_batch(), used_of_rank(rank));
    if (own_begin < end) ranges.push_back({offset + own_begin, offset + end});
    offset += samples_of_rank[rank];
  }
  return ranges;
}

std::int64_t BatchPlan::accumulation_steps() const {
  if (is_sharded()) return num_micro_batches(rank_batch());
  return ceil_div(num_micro_batches(global_batch_size), num_ranks);
}

double BatchPlan::utilization() const {
  const std::int64_t slots = accumulation_steps() * num_ranks;
  const std::int64_t work = is_sharded() ? slots : num_micro_batches(global_batch_size);
  return static_cast<double>(work) / static_cast<double>(slots);
}

std::int64_t BatchPlan::num_working_ranks() const {
  if (is_sharded()) return num_ranks;
  return std::min<std::int64_t>(num_ranks, num_micro_batches(global_batch_size));
}

std::int64_t BatchPlan::used_of_rank(std::size_t rank) const {
  const std::int64_t own = samples_of_rank[rank];
  return drop_last ? own / rank_batch() * rank_batch() : own;
}

std::int64_t BatchPlan::position_after(std::int64_t steps) const {
  if (!is_sharded()) {
    return steps > num_samples / global_batch_size ? num_samples : steps * global_batch_size;
  }
  std::int64_t samples = 0;
  for (std::size_t rank = 0; rank < samples_of_rank.size(); ++rank) {
    const std::int64_t used = used_of_rank(rank);
    samples += steps > used / rank_batch() ? used : steps * rank_batch();
  }
  return samples;
}

std::int64_t BatchPlan::sharded_step_at(std::int64_t sample_in_epoch) const {
  const std::int64_t longest = *std::max_element(samples_of_rank.begin(), samples_of_rank.end());
  std::int64_t low = 0;
  std::int64_t high = ceil_div(longest, rank_batch());
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (position_after(middle) >= sample_in_epoch) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace lockstep
