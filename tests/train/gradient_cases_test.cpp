// Reported failures of gradients over micro-batches and ranks, with their right values.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/mpi_main.hpp"
#include "tests/train/first_ranks.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

/// The weight after every step.
std::vector<double> course(const std::vector<double>& pulls, const TrainerOptions& options, double initial = 0.0) {
  const auto communicator = make();
  PulledRun run(column(pulls), at::full({1}, initial, at::kDouble), options, *communicator);
  std::vector<double> weights;
  while (!run.trainer().plan().finished()) {
    run.advance(1);
    weights.push_back(run.weight().item<double>());
  }
  return weights;
}

std::vector<double> count_to(int last) {
  std::vector<double> values;
  for (int value = 1; value <= last; ++value) values.push_back(value);
  return values;
}

TrainerOptions descent_of_epochs(double rate, std::int64_t global_batch_size, const std::string& epochs) {
  TrainerOptions options = descent(rate, global_batch_size);
  options.plan.num_train_epochs = epochs;
  return options;
}

TEST(Cases, C002TheTailIsDividedByItsOwnSamples) {
  const std::vector<double> expected{-2.5, -8.5, -11.0, -17.0, -19.5, -25.5};
  EXPECT_EQ(course(count_to(7), descent_of_epochs(1.0, 4, "3")), expected);
}

TEST(Cases, C003TheWeightsOfAnEpochThatDividesEvenly) {
  const std::vector<double> expected{-2.5, -9.0, -11.5, -18.0};
  EXPECT_EQ(course(count_to(8), descent_of_epochs(1.0, 4, "2")), expected);
}

TEST(Cases, C004AnEpochShorterThanAStepStillTrains) {
  const std::vector<double> expected{-2.0, -4.0, -6.0, -8.0, -10.0};
  EXPECT_EQ(course(count_to(3), descent_of_epochs(1.0, 8, "5")), expected);
}

TEST(Cases, C016TheFirstUpdateAlreadyUsesTheSchedule) {
  TrainerOptions options = descent(1e-4, 1);
  options.plan.schedule.kind = ScheduleKind::constant_with_warmup;
  options.plan.schedule.warmup_steps = 100;
  const std::vector<double> weights = course(std::vector<double>(101, 1.0), options, 1.0);
  EXPECT_EQ(weights[0], 1.0);
  EXPECT_NEAR(weights[1], 0.999999, 1e-12);
  EXPECT_NEAR(weights[99], 0.99505, 1e-12);
  EXPECT_NEAR(weights[100], 0.99495, 1e-12);
}

TEST(Cases, C036EndToEndOracle) {
  TrainerOptions options = descent(0.1, 8, 4);
  options.plan.num_train_epochs = "2";
  options.plan.schedule.kind = ScheduleKind::cosine;
  options.plan.schedule.warmup_steps = 2;
  const at::Tensor pulls = column(count_to(22));
  const at::Tensor initial = at::zeros({1}, at::kDouble);
  for (int stop = 0; stop <= 6; ++stop) {
    const auto communicator = make();
    std::optional<MemoryCheckpoint> checkpoint;
    {
      PulledRun run(pulls, initial, options, *communicator);
      run.advance(stop);
      checkpoint.emplace(run.trainer().snapshot(), *communicator);
    }
    on_first_ranks(1 + stop % session().num_ranks(), [&](Communicator& some) {
      PulledRun run(pulls, initial, options, some, &*checkpoint);
      run.advance();
      EXPECT_NEAR(run.weight().item<double>(), -3.86966991411009, 1e-12) << "stopped after " << stop;
    });
  }
}

TEST(Cases, C097MeanNotSum) { EXPECT_EQ(course({1, 3}, descent(0.1, 2), 1.0).back(), 0.8); }

TEST(Cases, C098MicroBatchesOfDifferentSizeWeighEachSampleTheSame) {
  EXPECT_EQ(course({0, 1, 2, 5}, descent(1.0, 4, 3)).back(), -2.0);
}

TEST(Cases, C099SynchronisedOverTheWholeWindow) { EXPECT_EQ(course({1, 3, 2, 5}, descent(1.0, 4)).back(), -2.75); }

TEST(Cases, C103OneRankRunsOutOfData) {
  EXPECT_EQ(course({1, 1, 1, 1, 6}, descent(1.0, 2)), (std::vector<double>{-1.0, -2.0, -8.0}));
}

/// Parameters of which a micro-batch uses some: the row [number of the parameter, pull].
class BranchModel final : public torch::nn::Module {
 public:
  explicit BranchModel(const std::vector<std::string>& names) {
    for (const std::string& name : names) branches_.push_back(register_parameter(name, at::ones({4})));
  }

  Loss loss(const Batch& batch) const {
    at::Tensor sum = at::zeros({});
    for (std::int64_t i = 0; i < batch.size(); ++i) {
      const at::Tensor row = batch.inputs[i];
      sum = sum + branches_[static_cast<std::size_t>(row[0].item<std::int64_t>())].sum() * row[1];
    }
    return sum / static_cast<double>(batch.size());
  }

  const at::Tensor& branch(std::size_t index) const { return branches_[index]; }

 private:
  std::vector<at::Tensor> branches_;
};

/// Trains a, b, c, ... (all 1 at first) to the end; their first elements.
std::map<std::string, double> branches(const std::vector<std::vector<double>>& rows, const TrainerOptions& options,
                                       const std::vector<std::string>& names = {"a", "b", "c"}) {
  const auto communicator = make();
  std::vector<at::Tensor> samples;
  for (const auto& row : rows) samples.push_back(at::tensor(row, at::kFloat));
  const RowDataset data(at::stack(samples));
  BranchModel model(names);
  {
    Trainer trainer(
        model, [&](const Batch& batch) { return model.loss(batch); }, data, options, *communicator);
    while (!trainer.plan().finished()) trainer.take_step();
  }
  std::map<std::string, double> values;
  for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] = model.branch(i)[0].item<double>();
  return values;
}

TEST(Cases, C100ParameterUsedOnlyInAnEarlyMicroBatch) {
  // The mean over the window's four samples.
  const auto values = branches({{0, 1}, {1, 10}, {0, 3}, {1, 30}}, descent(1.0, 4));
  EXPECT_EQ(1.0 - values.at("a"), 1.0);
  EXPECT_EQ(1.0 - values.at("b"), 10.0);
}

TEST(Cases, C101ParameterUnusedOnSomeRanks) {
  const auto values = branches({{0, 2}, {1, 6}}, descent(1.0, 2));
  EXPECT_EQ(1.0 - values.at("a"), 1.0);
  EXPECT_EQ(1.0 - values.at("b"), 3.0);
  EXPECT_EQ(values.at("c"), 1.0);
}

TEST(Cases, C102EachParameterIsReducedWithItself) {
  // The second micro-batch meets the parameters in the other order.
  const auto values = branches({{0, 1}, {1, 2}, {1, 2}, {0, 1}}, descent(1.0, 4, 2), {"a", "b"});
  EXPECT_EQ(1.0 - values.at("a"), 0.5);
  EXPECT_EQ(1.0 - values.at("b"), 1.0);
}

TEST(Cases, C056NoGradientIsAZeroGradient) {
  for (const auto& [steps, expected] : std::map<int, double>{{1, 0.999}, {10, 0.990044880209748}}) {
    TrainerOptions options = descent(0.1, 1);
    options.optimizer = {};
    options.optimizer.weight_decay = 0.01;
    const std::vector<std::vector<double>> rows(static_cast<std::size_t>(steps), {0, 1});
    EXPECT_NEAR(branches(rows, options).at("c"), expected, 1e-6);
  }
}

/// y = x w under autocast: the gradient of w is x, in 16 bits.
void expect_16_bit_mean(Precision precision, double pull, std::int64_t num_micro_batches) {
  const auto communicator = make();
  const RowDataset data(at::full({num_micro_batches, 1}, pull));
  PulledModel model(at::zeros({1, 1}));
  TrainerOptions options = descent(1.0, num_micro_batches);
  options.precision = precision;
  options.loss_scaler.init_scale = 1.0;
  Trainer trainer(
      model, [&](const Batch& batch) -> Loss { return at::linear(batch.inputs, model.weight).mean(); }, data, options,
      *communicator);
  const StepReport report = trainer.take_step();
  EXPECT_EQ(report.attempts, 1);
  EXPECT_EQ(report.gradient_norm, pull);
  EXPECT_EQ(model.weight.item<double>(), -pull);
}

TEST(Cases, C104SixteenBitGradientsAreAddedUpInFloat32) {
  expect_16_bit_mean(Precision::fp16, 40000.0, 2);
  expect_16_bit_mean(Precision::fp16, 2000.0, 64);
  expect_16_bit_mean(Precision::bf16, 1.0, 300);
}

class NormModel final : public torch::nn::Module {
 public:
  NormModel()
      : norm(register_module("norm", torch::nn::BatchNorm1d(1))),
        weight(register_parameter("weight", at::ones({1}))) {}

  torch::nn::BatchNorm1d norm;
  at::Tensor weight;
};

TEST(Cases, C055BatchNormBuffersOverRanks) {
  const auto communicator = make();
  const RowDataset data(column({-1, 1, 9, 11}, at::kFloat));
  const auto loss_of = [](NormModel& model) {
    return [&model](const Batch& batch) -> Loss { return (model.norm(batch.inputs) * model.weight).mean(); };
  };
  const auto expect_statistics = [](const NormModel& model) {
    EXPECT_NEAR(model.norm->running_mean.item<double>(), 0.5, 1e-6);  // the mean over the samples
    EXPECT_NEAR(model.norm->running_var.item<double>(), 1.1, 1e-6);
    EXPECT_EQ(model.norm->num_batches_tracked.item<std::int64_t>(), 1);
    EXPECT_EQ(model.norm->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(model.norm->num_batches_tracked.dim(), 0);
  };
  std::optional<MemoryCheckpoint> checkpoint;
  std::map<std::string, double> before;
  const MetricFunction metrics;
  {
    NormModel model;
    Trainer trainer(model, loss_of(model), data, descent(0.1, 4, 2), *communicator);
    trainer.take_step();
    expect_statistics(model);
    checkpoint.emplace(trainer.snapshot(), *communicator);
    before = trainer.evaluate(data, metrics);
    expect_statistics(model);
  }
  on_first_ranks(1, [&](Communicator& alone) {
    NormModel model;
    Trainer trainer(model, loss_of(model), data, descent(0.1, 4, 2), alone, &*checkpoint);
    expect_statistics(model);
    EXPECT_EQ(trainer.evaluate(data, metrics), before);
  });
}

/// A loss that is a sum over tokens: the row [sum, number of tokens].
StepReport step_over_tokens(const std::vector<std::vector<double>>& rows, double& weight) {
  const auto communicator = make();
  std::vector<at::Tensor> samples;
  for (const auto& row : rows) samples.push_back(at::tensor(row, at::kDouble));
  const RowDataset data(at::stack(samples));
  PulledModel model(at::ones({1}, at::kDouble));
  const auto loss = [&](const Batch& batch) -> Loss {
    const at::Tensor sums = batch.inputs.sum(0);
    return {model.weight[0] * sums[0], sums[1].item<double>()};
  };
  Trainer trainer(model, loss, data, descent(1.0, static_cast<std::int64_t>(rows.size())), *communicator);
  const StepReport report = trainer.take_step();
  weight = model.weight.item<double>();
  return report;
}

TEST(Cases, C062TokensDifferBetweenRanksAndMicroBatches) {
  double weight = 0.0;
  StepReport report = step_over_tokens({{20, 10}, {30, 30}}, weight);
  EXPECT_EQ(report.loss, 1.25);
  EXPECT_EQ(report.gradient_norm, 1.25);
  EXPECT_EQ(weight, -0.25);

  report = step_over_tokens({{6, 3}, {6, 1}}, weight);
  EXPECT_EQ(report.gradient_norm, 3.0);
  EXPECT_EQ(weight, -2.0);

  report = step_over_tokens({{0, 0}, {0, 0}, {0, 0}}, weight);
  EXPECT_EQ(report.loss, 0.0);
  EXPECT_EQ(report.gradient_norm, 0.0);
  EXPECT_EQ(weight, 1.0);
}

}  // namespace
}  // namespace lockstep::test
