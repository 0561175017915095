#pragma once

#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/train/trainer.hpp"

namespace lockstep::test {

/// Rows of a tensor as samples; inputs and targets are the same rows.
class RowDataset final : public Dataset {
 public:
  explicit RowDataset(at::Tensor rows) : rows_(std::move(rows)) {}

  std::int64_t num_samples() const override { return rows_.size(0); }

  Batch get(std::span<const std::int64_t> ids) const override {
    const at::Tensor rows =
        rows_.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size()), at::kLong));
    return {rows, rows};
  }

 private:
  at::Tensor rows_;
};

/// A model whose gradient is the data: sample i pulls the weight by row i, so a step's gradient is the mean of its
/// samples' rows. What is not finite in a row reaches the gradient, but not the loss.
class PulledModel final : public torch::nn::Module {
 public:
  explicit PulledModel(const at::Tensor& initial) : weight(register_parameter("weight", initial.clone())) {}

  at::Tensor loss(const at::Tensor& pulls) const {
    const at::Tensor finite = at::nan_to_num(pulls, 0.0, 0.0, 0.0);
    const at::Tensor pulled = weight.view_as(weight);
    if (!at::isfinite(pulls).all().item<bool>()) {
      const at::Tensor poison = (pulls - finite).mean(0);
      pulled.register_hook([poison](const at::Tensor& gradient) { return gradient + poison; });
    }
    return (finite * pulled).sum(1).mean();
  }

  at::Tensor weight;
};

/// A training of a PulledModel over the samples in their order.
class PulledRun {
 public:
  PulledRun(const at::Tensor& pulls, const at::Tensor& initial, const TrainerOptions& options,
            Communicator& communicator, CheckpointReader* resume_from = nullptr)
      : data_(pulls),
        model_(initial),
        trainer_(std::make_unique<Trainer>(
            model_, [this](const Batch& batch) -> Loss { return model_.loss(batch.inputs); }, data_, options,
            communicator, resume_from)) {}

  Trainer& trainer() { return *trainer_; }
  const at::Tensor& weight() const { return model_.weight; }

  /// Takes `steps` steps, or all that are left; the reports of this call.
  std::vector<StepReport> advance(std::int64_t steps = -1) {
    std::vector<StepReport> reports;
    for (; steps != 0 && !trainer_->plan().finished(); --steps) reports.push_back(trainer_->take_step({}, events));
    return reports;
  }

  TrainerEvents events;

 private:
  RowDataset data_;
  PulledModel model_;
  std::unique_ptr<Trainer> trainer_;
};

/// Samples in their order, plain gradient descent at a constant rate: w -= rate x gradient.
inline TrainerOptions descent(double learning_rate, std::int64_t global_batch_size,
                              std::int64_t micro_batch_size = 1) {
  TrainerOptions options;
  options.plan.global_batch_size = global_batch_size;
  options.plan.micro_batch_size = micro_batch_size;
  options.plan.num_train_epochs = "1";
  options.plan.shuffle = ShuffleKind::sequential;
  options.plan.schedule.kind = ScheduleKind::constant;
  options.plan.schedule.learning_rate = learning_rate;
  options.optimizer.kind = OptimizerKind::sgd;
  options.optimizer.momentum = 0.0;
  return options;
}

/// The numbers of a tensor.
inline std::vector<double> numbers(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous().view(-1);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

/// One number a sample.
inline at::Tensor column(const std::vector<double>& values, at::ScalarType type = at::kDouble) {
  return at::tensor(values, at::kDouble).to(type).view({-1, 1});
}

}  // namespace lockstep::test
