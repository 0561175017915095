#include "runtime/train/sharded_optimizer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "runtime/plan/error.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {

std::string name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "adamw";
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::sgd:
      return "sgd";
  }
  return "unknown";
}

OptimizerKind optimizer_kind_from(std::string_view name) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd})
    if (name_of(kind) == name) return kind;
  throw Error(ErrorKind::usage, text("the optimizer '", name, "' is not known: use adamw, adam or sgd"));
}

ShardedOptimizer::ShardedOptimizer(FlatState& state, const OptimizerOptions& options,
                                   const std::vector<ParameterGroup>& groups)
    : state_(state), options_(options), parameter_groups_(groups) {
  if (options_.kind == OptimizerKind::sgd) {
    if (options_.momentum != 0.0) moment_names_ = {"momentum_buffer"};
  } else {
    for (const double beta : {options_.beta1, options_.beta2})
      if (!(beta >= 0.0 && beta < 1.0))
        throw Error(ErrorKind::usage, text("a beta of ", name_of(options_.kind), " is ", beta,
                                           " (its moment would never move, or grow without end): give a number from "
                                           "0 to below 1"));
    moment_names_ = {"exp_avg", "exp_avg_sq"};
  }
  options_.weight_decay = options_.resolved_weight_decay();
  for (const FlatGroup& group : state_.groups()) {
    moments_.emplace_back();
    for (std::size_t i = 0; i < moment_names_.size(); ++i)
      moments_.back().push_back(at::zeros({group.slice().size()}, group.weights.options()));
  }
}

std::vector<ShardedOptimizer::Segment> ShardedOptimizer::segments_of(const FlatGroup& group) const {
  const Slice slice = group.parameter_slice();
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < group.entries.size(); ++i) {
    const FlatEntry& entry = group.entries[i];
    if (!entry.is_parameter || !entry.trainable) continue;
    // An entry reaches to the next one: the padding between them holds zeros, and zero it stays.
    const bool is_last = i + 1 == group.entries.size() || !group.entries[i + 1].is_parameter;
    const std::int64_t next =
        is_last ? group.parameter_blocks * group.layout.block_elements : group.entries[i + 1].offset;
    Segment segment{std::max(entry.offset, slice.begin) - slice.begin, std::min(next, slice.end) - slice.begin,
                    *options_.weight_decay, 1.0, entry.updates};
    if (segment.begin >= segment.end) continue;
    for (const ParameterGroup& settings : parameter_groups_) {
      if (!settings.matches(entry.name)) continue;
      if (settings.weight_decay) segment.weight_decay = *settings.weight_decay;
      segment.learning_rate_scale = settings.learning_rate_scale;
      break;
    }
    if (!segments.empty()) {
      Segment& previous = segments.back();
      if (previous.end == segment.begin && previous.weight_decay == segment.weight_decay &&
          previous.learning_rate_scale == segment.learning_rate_scale && previous.updates == segment.updates) {
        previous.end = segment.end;
        continue;
      }
    }
    segments.push_back(segment);
  }
  return segments;
}

void ShardedOptimizer::step(const std::vector<at::Tensor>& gradients, double learning_rate,
                            const at::Tensor& blocked) {
  const at::NoGradGuard no_grad;
  const std::optional<at::Tensor> found_inf = blocked.defined() ? std::optional(blocked) : std::nullopt;
  for (std::size_t g = 0; g < state_.groups().size(); ++g) {
    FlatGroup& group = state_.groups()[g];
    for (const Segment& segment : segments_of(group)) {
      const std::int64_t length = segment.end - segment.begin;
      const auto part = [&](const at::Tensor& of_slice) { return of_slice.narrow(0, segment.begin, length); };
      const at::Tensor weights = part(group.own_weights);
      const at::Tensor gradient = part(gradients[g]);
      const double rate = learning_rate * segment.learning_rate_scale;
      if (options_.kind == OptimizerKind::sgd) {
        std::vector<at::Tensor> momentum;
        if (!moment_names_.empty()) momentum.push_back(part(moments_[g][0]));
        at::_fused_sgd_(weights, gradient, momentum, segment.weight_decay, options_.momentum, rate, /*dampening=*/0.0,
                        options_.nesterov, /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{}, found_inf);
        continue;
      }
      const at::Tensor exp_avg = part(moments_[g][0]);
      const at::Tensor exp_avg_sq = part(moments_[g][1]);
      const at::Tensor updates =
          at::full({}, static_cast<double>(segment.updates + 1), gradient.options().dtype(at::kFloat));
      const auto update =
          options_.kind == OptimizerKind::adamw ? &at::_ops::_fused_adamw_::call : &at::_ops::_fused_adam_::call;
      update(weights, gradient, exp_avg, exp_avg_sq, {}, updates, rate, options_.beta1, options_.beta2,
             segment.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, found_inf);
    }
    for (FlatEntry& entry : group.entries)
      if (entry.trainable) ++entry.updates;
  }
}

void ShardedOptimizer::take_back_step() {
  for (FlatGroup& group : state_.groups())
    for (FlatEntry& entry : group.entries)
      if (entry.trainable) --entry.updates;
}

AttributeGroup ShardedOptimizer::to_attributes() const {
  AttributeGroup attributes = {{"kind", name_of(options_.kind)}, {"weight_decay", *options_.weight_decay}};
  if (options_.kind == OptimizerKind::sgd) {
    attributes["momentum"] = options_.momentum;
    attributes["nesterov"] = std::int64_t{options_.nesterov};
  } else {
    attributes["beta1"] = options_.beta1;
    attributes["beta2"] = options_.beta2;
    attributes["eps"] = options_.eps;
  }
  return attributes;
}

}  // namespace lockstep
