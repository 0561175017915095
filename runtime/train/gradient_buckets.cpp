#include "runtime/train/gradient_buckets.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep {
namespace {

class ArrivalHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit ArrivalHook(std::function<void()> on_arrival) : on_arrival_(std::move(on_arrival)) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override { on_arrival_(); }

 private:
  std::function<void()> on_arrival_;
};

}  // namespace

GradientBuckets::GradientBuckets(FlatState& state, std::int64_t bucket_bytes) : state_(state) {
  for (std::size_t group = 0; group < state_.groups().size(); ++group) cut(group, bucket_bytes);
  num_early_ = buckets_.size();
  for (std::size_t group = 0; group < state_.groups().size(); ++group) {
    const FlatGroup& flat = state_.groups()[group];
    const bool has_early =
        std::any_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) { return bucket.group == group; });
    const Slice rest{has_early ? flat.parameter_blocks * flat.layout.block_elements : 0, flat.layout.num_elements()};
    if (rest.size() > 0) buckets_.push_back({group, rest, 0});
  }
  for (Parameter& parameter : parameters_)  // which stay where they are from here on
    torch::autograd::impl::set_post_acc_grad_hooks(
        state_.groups()[parameter.group].entries[parameter.entry].tensor,
        std::make_unique<ArrivalHook>([this, &parameter] { arrive(parameter); }));
}

GradientBuckets::~GradientBuckets() {
  for (const Parameter& parameter : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(state_.groups()[parameter.group].entries[parameter.entry].tensor,
                                                   nullptr);
}

void GradientBuckets::cut(std::size_t index, std::int64_t bucket_bytes) {
  const FlatGroup& group = state_.groups()[index];
  const auto element_bytes = static_cast<std::int64_t>(size_of(group.layout.type));
  const std::int64_t parameters_end = group.parameter_blocks * group.layout.block_elements;
  Bucket bucket{index, {parameters_end, parameters_end}, 0};
  for (std::size_t i = group.entries.size(); i-- > 0;) {
    const FlatEntry& entry = group.entries[i];
    if (!entry.is_parameter) continue;
    bucket.range.begin = entry.offset;
    if (entry.trainable) {
      parameters_.push_back({index, i, buckets_.size()});
      ++bucket.num_awaited;
    }
    const bool is_full = bucket_bytes > 0 && bucket.range.size() * element_bytes >= bucket_bytes;
    if (bucket.num_awaited > 0 && (is_full || entry.offset == 0)) {
      buckets_.push_back(bucket);
      bucket = {index, {entry.offset, entry.offset}, 0};
    }
  }
  // Frozen parameters at the front go with the last bucket.
  if (bucket.range.size() > 0 && !buckets_.empty() && buckets_.back().group == index) buckets_.back().range.begin = 0;
}

void GradientBuckets::begin(const TreeAccumulator::Deposit& where, WholeBucket on_whole) {
  where_ = where;
  on_whole_ = std::move(on_whole);
  num_announced_ = 0;
  num_missing_.clear();
  for (const Bucket& bucket : buckets_) num_missing_.push_back(bucket.num_awaited);
  for (Parameter& parameter : parameters_) parameter.arrived = false;
}

void GradientBuckets::arrive(Parameter& parameter) {
  if (!where_ || parameter.arrived) return;
  const at::NoGradGuard no_grad;
  parameter.arrived = true;
  state_.deposit_gradient(parameter.group, parameter.entry, *where_);
  if (--num_missing_[parameter.bucket] == 0) complete(parameter.bucket);
}

void GradientBuckets::complete(std::size_t bucket) {
  state_.merge(buckets_[bucket].group, buckets_[bucket].range, *where_);
  if (!on_whole_) return;
  // In one order on all ranks, whatever order the gradients come in.
  while (num_announced_ < num_early_ && num_missing_[num_announced_] == 0) on_whole_(buckets_[num_announced_++]);
}

void GradientBuckets::finish(double buffer_weight) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) arrive(parameter);
  state_.deposit_buffers(*where_, buffer_weight);
  for (std::size_t i = num_early_; i < buckets_.size(); ++i)
    state_.merge(buckets_[i].group, buckets_[i].range, *where_);
  if (on_whole_)
    while (num_announced_ < buckets_.size()) on_whole_(buckets_[num_announced_++]);
  where_.reset();
}

}  // namespace lockstep
