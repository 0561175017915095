#pragma once

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/train_models.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/train/trainer.hpp"
#include "runtime/train/weights_digest.hpp"

namespace lockstep::test {

/// Random inputs and classes, the same on every rank.
class RandomDataset final : public Dataset {
 public:
  RandomDataset(std::int64_t num_samples, std::vector<std::int64_t> sample_shape, std::int64_t num_classes) {
    torch::manual_seed(7);
    sample_shape.insert(sample_shape.begin(), num_samples);
    inputs_ = at::rand(sample_shape);
    targets_ = at::randint(num_classes, {num_samples}, at::kLong);
  }

  std::int64_t num_samples() const override { return inputs_.size(0); }

  Batch get(std::span<const std::int64_t> ids) const override {
    const at::Tensor index = at::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size()), at::kLong);
    return {inputs_.index_select(0, index), targets_.index_select(0, index)};
  }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

/// A small training whose result must not depend on who computes it.
struct TrainingCase {
  std::string name;
  ModelOptions model;
  std::int64_t num_samples = 45;
  std::int64_t global_batch_size = 20;
  std::int64_t micro_batch_size = 3;
  TrainerOptions options;

  static ModelOptions mlp() {
    return {.kind = "mlp", .hidden_sizes = {24, 17}, .dropout = 0.2, .input_shape = {1, 8, 8}, .num_outputs = 5};
  }
  static ModelOptions cnn() {
    return {.kind = "cnn", .hidden_sizes = {}, .dropout = 0.3, .input_shape = {1, 8, 8}, .num_outputs = 5};
  }

  TrainerOptions resolved() const {
    TrainerOptions result = options;
    result.plan.global_batch_size = global_batch_size;
    result.plan.micro_batch_size = micro_batch_size;
    if (!result.plan.num_train_epochs) result.plan.num_train_epochs = "2";
    result.plan.seed = 3;
    return result;
  }
};

/// What is compared between rank counts.
struct TrainingResult {
  std::string digest;
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> rates;
  std::vector<double> scales;
  std::vector<std::int64_t> trackers;  ///< of the loss scaler, after the step

  friend bool operator==(const TrainingResult&, const TrainingResult&) = default;
};

/// A training that is under way.
class TrainingRun {
 public:
  TrainingRun(const TrainingCase& what, Communicator& communicator, CheckpointReader* resume_from = nullptr)
      : data_(what.num_samples, what.model.input_shape, what.model.num_outputs),
        model_(make_model(what.model, 11)),
        trainer_(std::make_unique<Trainer>(*model_, make_loss("cross-entropy", *model_), data_, what.resolved(),
                                           communicator, resume_from)) {}

  Trainer& trainer() { return *trainer_; }
  Model& model() { return *model_; }

  /// Takes `steps` steps, or all that are left.
  void advance(TrainingResult& result, std::int64_t steps = -1, const TrainerEvents& events = {}) {
    RunControl control;
    if (steps >= 0) control.stop_after_steps = steps;
    control.events = events;
    control.events.on_step = [&](const StepReport& report) {
      result.losses.push_back(report.loss);
      result.norms.push_back(report.gradient_norm);
      result.rates.push_back(report.plan.learning_rate);
      result.scales.push_back(report.loss_scale);
      result.trackers.push_back(trainer_->loss_scaler().growth_tracker());
      if (events.on_step) events.on_step(report);
    };
    trainer_->run(control, nullptr);
    result.digest = weights_digest(*model_);
  }

 private:
  RandomDataset data_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace lockstep::test
