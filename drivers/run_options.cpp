#include "drivers/run_options.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "drivers/checkpoint_table.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

template <class Value>
void add(AttributeGroup& group, const char* name, const std::optional<Value>& value) {
  if (value) group[name] = *value;
}

void add_optimizer(AttributeGroup& group, const OptimizerOptions& optimizer) {
  group["optimizer"] = name_of(optimizer.kind);
  group["weight-decay"] = optimizer.resolved_weight_decay();
  if (optimizer.kind == OptimizerKind::sgd) {
    group["momentum"] = optimizer.momentum;
    group["nesterov"] = std::int64_t{optimizer.nesterov};
  } else {
    group["adam-beta1"] = optimizer.beta1;
    group["adam-beta2"] = optimizer.beta2;
    group["adam-epsilon"] = optimizer.eps;
  }
}

void add_precision(AttributeGroup& group, const TrainerOptions& trainer) {
  group["precision"] = name_of(trainer.precision);
  if (trainer.precision != Precision::fp16) {
    group["on-nonfinite"] = name_of(trainer.on_nonfinite);
    if (trainer.on_nonfinite == NonfinitePolicy::skip) group["max-nonfinite"] = trainer.max_nonfinite;
    return;
  }
  const LossScalerOptions& scaler = trainer.loss_scaler;
  group["on-overflow"] = name_of(trainer.on_overflow);
  group["static-scale"] = std::int64_t{scaler.is_static};
  group["init-scale"] = scaler.init_scale;
  group["min-scale"] = scaler.min_scale;
  group["max-scale"] = scaler.max_scale;
  if (scaler.is_static) return;
  group["growth-factor"] = scaler.growth_factor;
  group["backoff-factor"] = scaler.backoff_factor;
  group["growth-interval"] = scaler.growth_interval;
  group["hysteresis"] = scaler.hysteresis;
}

}  // namespace

AttributeGroup training_options(const TrainCommand& command, const ModelOptions& model) {
  AttributeGroup group = {{"train-data", command.train_data},
                          {"inputs-name", command.inputs_name},
                          {"targets-name", command.targets_name},
                          {"model", model.kind},
                          {"dropout", model.dropout},
                          {"loss", command.loss},
                          {"max-grad-norm", command.trainer.max_grad_norm}};
  if (!command.validation_data.empty()) group["validation-data"] = command.validation_data;
  if (model.kind == "mlp") group["hidden-sizes"] = model.hidden_sizes;
  if (command.loss == "cross-entropy") group["num-classes"] = model.num_outputs;
  add_optimizer(group, command.trainer.optimizer);
  add_precision(group, command.trainer);
  return group;
}

AttributeGroup plan_options(const PlanOptions& plan) {
  const ScheduleOptions& schedule = plan.schedule;
  AttributeGroup group = {
      {"seed", static_cast<std::int64_t>(plan.seed)}, {"shuffle", name_of(plan.shuffle)},
      {"drop-last", std::int64_t{plan.drop_last}},    {"learning-rate", schedule.learning_rate},
      {"lr-scheduler-type", name_of(schedule.kind)},  {"on-rank-change", name_of(plan.on_rank_change)},
      {"lr-scaling", name_of(plan.lr_scaling)},       {"schedule-from", name_of(plan.schedule_from)}};
  add(group, "global-batch-size", plan.global_batch_size);
  add(group, "micro-batch-size", plan.micro_batch_size);
  add(group, "gradient-accumulation-steps", plan.gradient_accumulation_steps);
  add(group, "max-steps", plan.max_steps);
  add(group, "train-samples", plan.train_samples);
  add(group, "warmup-steps", schedule.warmup_steps);
  add(group, "warmup-samples", schedule.warmup_samples);
  add(group, "warmup-ratio", schedule.warmup_ratio);
  if (!plan.max_steps && !plan.train_samples)
    group["num-train-epochs"] = plan.num_train_epochs.value_or(kDefaultNumTrainEpochs);
  return group;
}

std::vector<PlanChange> changed_options(const AttributeTree& stored, const AttributeGroup& training) {
  std::vector<PlanChange> changes;
  const auto options = stored.find("options");
  if (options == stored.end()) return changes;
  for (const auto& [name, value] : training) {
    const auto before = options->second.find(name);
    if (name == "precision" || before == options->second.end() || before->second == value) continue;
    if (before->second.index() != value.index()) continue;  // written by another version
    const std::size_t all = std::numeric_limits<std::size_t>::max();
    PlanChange change{name, value_text(before->second, all), value_text(value, all)};
    std::replace(change.name.begin(), change.name.end(), '-', '_');
    changes.push_back(std::move(change));
  }
  return changes;
}

}  // namespace lockstep
