#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/train/flat_state.hpp"

namespace lockstep {

enum class OptimizerKind { adamw, adam, sgd };

std::string name_of(OptimizerKind kind);
OptimizerKind optimizer_kind_from(std::string_view name);  ///< throws Error(usage)

/// Settings of the optimizer; names and defaults as in torch.optim.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  std::optional<double> weight_decay;  ///< 0.01 for AdamW, 0 for the others
  double momentum = 0.9;               ///< sgd
  bool nesterov = false;               ///< sgd

  double resolved_weight_decay() const { return weight_decay.value_or(kind == OptimizerKind::adamw ? 0.01 : 0.0); }
};

/// Parameters with settings of their own: the first group whose `matches` says yes counts.
struct ParameterGroup {
  std::function<bool(const std::string& name)> matches;
  std::optional<double> weight_decay;
  double learning_rate_scale = 1.0;
};

/// The optimizer of this rank's slice: its moments, and LibTorch's fused kernels on them.
///
/// Elementwise optimizers only, so that a slice can be updated alone. A parameter's number of updates (bias
/// correction) is its own: one that was frozen for a while does not skip its warm start. The state must outlive it.
class ShardedOptimizer {
 public:
  /// Throws Error(usage) for betas that are not in [0, 1).
  ShardedOptimizer(FlatState& state, const OptimizerOptions& options, const std::vector<ParameterGroup>& groups);

  /// Updates this rank's slice of the trainable parameters. `gradients[g]` is the slice of group g, already divided
  /// and clipped; `learning_rate` the base rate of this step. The caller publishes afterwards. `blocked` (a float32
  /// scalar of the device, or undefined): the update counts, but changes nothing where it is 1.
  void step(const std::vector<at::Tensor>& gradients, double learning_rate, const at::Tensor& blocked = {});

  /// Takes back that a blocked update counted.
  void take_back_step();

  /// The names of the moments: {"exp_avg", "exp_avg_sq"}, {"momentum_buffer"}, or none.
  const std::vector<std::string>& moment_names() const { return moment_names_; }

  /// Moment `index` of this rank's slice of group `group`: slice().size() elements.
  const at::Tensor& moment(std::size_t group, std::size_t index) const { return moments_[group][index]; }

  AttributeGroup to_attributes() const;
  const OptimizerOptions& options() const { return options_; }

 private:
  struct Segment {
    std::int64_t begin = 0;  ///< within the slice
    std::int64_t end = 0;
    double weight_decay = 0.0;
    double learning_rate_scale = 1.0;
    std::int64_t updates = 0;
  };
  std::vector<Segment> segments_of(const FlatGroup& group) const;

  FlatState& state_;
  OptimizerOptions options_;
  std::vector<ParameterGroup> parameter_groups_;
  std::vector<std::string> moment_names_;
  std::vector<std::vector<at::Tensor>> moments_;  ///< per group
};

}  // namespace lockstep
