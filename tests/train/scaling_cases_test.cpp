// Reported failures of loss scaling, clipping and gradients that are not finite, with their right values.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/mpi_main.hpp"
#include "tests/train/error_words.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TrainerOptions fp16_descent(double rate, std::int64_t global_batch_size, double scale) {
  TrainerOptions options = descent(rate, global_batch_size);
  options.precision = Precision::fp16;
  options.loss_scaler.init_scale = scale;
  return options;
}

std::int64_t whole(const Snapshot& snapshot, const std::string& group, const std::string& name) {
  return attribute<std::int64_t>(snapshot.attributes, group, name);
}

std::vector<double> rates(const std::vector<StepReport>& reports) {
  std::vector<double> all;
  for (const StepReport& report : reports) all.push_back(report.plan.learning_rate);
  return all;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-15) << i;
}

/// Ten steps, warm-up of two, overflows in the steps 3 and 4.
TrainerOptions overflowing_course(OverflowPolicy policy) {
  TrainerOptions options = fp16_descent(1e-3, 2, 65536.0);
  options.plan.schedule.kind = ScheduleKind::linear;
  options.plan.schedule.warmup_steps = 2;
  options.optimizer = {};
  options.optimizer.kind = OptimizerKind::adam;
  options.on_overflow = policy;
  options.overflow_drill_steps = {3, 4};
  return options;
}

TEST(Cases, C037SkippedUpdatesHoldTheSchedule) {
  const auto communicator = make();
  PulledRun run(at::ones({20, 3}), at::ones({3}), overflowing_course(OverflowPolicy::skip), *communicator);
  const auto reports = run.advance();
  expect_near(rates(reports), {0.0, 5e-4, 1e-3, 8.75e-4, 8.75e-4, 8.75e-4, 7.5e-4, 6.25e-4, 5e-4, 3.75e-4});
  for (std::size_t i = 0; i < reports.size(); ++i) EXPECT_EQ(reports[i].applied, i != 3 && i != 4) << i;
  const Snapshot snapshot = run.trainer().snapshot();
  EXPECT_EQ(whole(snapshot, "progress", "steps_applied"), 8);
  EXPECT_EQ(whole(snapshot, "progress", "steps_skipped"), 2);
  EXPECT_EQ(whole(snapshot, "progress", "steps_taken"), 10);
  EXPECT_EQ(whole(snapshot, "progress", "consumed_samples"), 20);
  EXPECT_EQ(whole(snapshot, "optimizer", "updates"), 8);
  EXPECT_EQ(run.trainer().loss_scaler().scale(), 16384.0F);
}

TEST(Cases, C037RetriedStepsKeepTheScheduleOfARunWithoutOverflows) {
  const auto communicator = make();
  const at::Tensor pulls = at::ones({20, 3});
  PulledRun run(pulls, at::ones({3}), overflowing_course(OverflowPolicy::retry), *communicator);
  const auto reports = run.advance();
  expect_near(rates(reports), {0.0, 5e-4, 1e-3, 8.75e-4, 7.5e-4, 6.25e-4, 5e-4, 3.75e-4, 2.5e-4, 1.25e-4});
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_TRUE(reports[i].applied);
    EXPECT_EQ(reports[i].attempts, i == 3 || i == 4 ? 2 : 1) << i;
  }
  const Snapshot snapshot = run.trainer().snapshot();
  EXPECT_EQ(whole(snapshot, "progress", "steps_applied"), 10);
  EXPECT_EQ(whole(snapshot, "progress", "steps_skipped"), 0);
  EXPECT_EQ(whole(snapshot, "progress", "attempts"), 12);
  EXPECT_EQ(whole(snapshot, "progress", "consumed_samples"), 20);
  EXPECT_EQ(whole(snapshot, "optimizer", "updates"), 10);

  // Scales are powers of two, so a float32 run has the same weights, and it has read every sample once.
  TrainerOptions plain = overflowing_course(OverflowPolicy::retry);
  plain.precision = Precision::fp32;
  plain.overflow_drill_steps.clear();
  PulledRun float32(pulls, at::ones({3}), plain, *communicator);
  float32.advance();
  EXPECT_EQ(numbers(run.weight()), numbers(float32.weight()));
  EXPECT_EQ(snapshot.attributes.at("coverage"), float32.trainer().snapshot().attributes.at("coverage"));
}

TEST(Cases, C039TheFirstStepsAfterARestartGoOnWithTheScaler) {
  const auto communicator = make();
  TrainerOptions options = fp16_descent(0.125, 1, 1024.0);
  options.loss_scaler.growth_interval = 10;
  const at::Tensor pulls = at::ones({12, 1});
  std::optional<MemoryCheckpoint> checkpoint;
  {
    PulledRun run(pulls, at::zeros({1}), options, *communicator);
    run.advance(7);
    EXPECT_EQ(run.trainer().loss_scaler().growth_tracker(), 7);
    checkpoint.emplace(run.trainer().snapshot(), *communicator);
  }
  options.loss_scaler.init_scale = 65536.0;
  PulledRun run(pulls, at::zeros({1}), options, *communicator, &*checkpoint);
  std::vector<double> scales;
  for (int step = 0; step < 5; ++step) {
    const StepReport report = run.trainer().take_step();
    EXPECT_EQ(report.gradient_norm, 1.0);
    scales.push_back(report.loss_scale);
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 1024, 1024, 2048, 2048}));
  EXPECT_EQ(run.weight().item<double>(), -1.5);
}

TEST(Cases, C041ClipsTheUnscaledGradient) {
  const auto communicator = make();
  TrainerOptions options = fp16_descent(0.1, 1, 1024.0);
  options.max_grad_norm = 1.0;
  PulledRun run(at::tensor({3.0F, 4.0F}).view({1, 2}), at::zeros({2}), options, *communicator);
  EXPECT_EQ(run.trainer().take_step().gradient_norm, 5.0);
  EXPECT_NEAR(run.weight()[0].item<double>(), -0.05999999, 1e-8);
  EXPECT_NEAR(run.weight()[1].item<double>(), -0.07999998, 1e-8);
}

TEST(Cases, C042AnInfiniteGradientIsNeverApplied) {
  const auto communicator = make();
  const at::Tensor pulls = at::tensor({inf, 1.0, 2.0}, at::kFloat).view({1, 3});
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    TrainerOptions options = fp16_descent(0.1, 1, 65536.0);
    options.precision = precision;
    options.max_grad_norm = 1.0;
    options.optimizer = {};
    options.on_overflow = OverflowPolicy::skip;
    options.on_nonfinite = NonfinitePolicy::skip;
    PulledRun run(pulls, at::ones({3}), options, *communicator);
    const StepReport report = run.trainer().take_step();
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.gradient_norm, inf);
    EXPECT_EQ(numbers(run.weight()), (std::vector<double>{1, 1, 1})) << name_of(precision);
    const Snapshot snapshot = run.trainer().snapshot();
    EXPECT_EQ(whole(snapshot, "optimizer", "updates"), 0);
    const MemoryCheckpoint stored(snapshot, *communicator);
    for (const char* moment : {"optimizer/exp_avg", "optimizer/exp_avg_sq"})
      EXPECT_EQ(stored.bytes(moment, "weight"), std::vector<std::byte>(3 * sizeof(float))) << moment;
  }
}

TEST(Cases, C042FiniteGradientsNeverGiveAnInfiniteNorm) {
  const auto communicator = make();
  TrainerOptions options = descent(1.0, 1);
  options.max_grad_norm = 1.0;
  PulledRun run(at::full({1, 100}, 1e20), at::zeros({100}), options, *communicator);
  const StepReport report = run.trainer().take_step();
  EXPECT_TRUE(report.applied);
  EXPECT_NEAR(report.gradient_norm / 1e21, 1.0, 1e-6);
  for (const double value : numbers(run.weight())) EXPECT_NEAR(value, -0.1, 1e-6);
}

TEST(Cases, C043OverflowInOneMicroBatchOfAWindow) {
  const auto communicator = make();
  TrainerOptions options = fp16_descent(0.1, 4, 65536.0);
  options.on_overflow = OverflowPolicy::skip;
  PulledRun run(column({1, inf, 1, 1, 2, 2, 2, 2}, at::kFloat), at::zeros({1}), options, *communicator);
  EXPECT_FALSE(run.trainer().take_step().applied);
  EXPECT_EQ(run.trainer().loss_scaler().scale(), 32768.0F);
  const StepReport second = run.trainer().take_step();
  EXPECT_EQ(second.gradient_norm, 2.0);
  EXPECT_NEAR(run.weight().item<double>(), -0.2, 1e-7);
  EXPECT_EQ(run.trainer().loss_scaler().growth_tracker(), 1);
}

/// The text of the Error that training ends with.
std::string failure_of(PulledRun& run, ErrorKind kind) {
  try {
    run.advance();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  ADD_FAILURE() << "the run went on to its end";
  return "";
}

TEST(Cases, C044AScaleThatCollapsesEndsTheRun) {
  const auto communicator = make();
  for (const OverflowPolicy policy : {OverflowPolicy::retry, OverflowPolicy::skip}) {
    TrainerOptions options = fp16_descent(0.1, 2, 65536.0);
    options.on_overflow = policy;
    at::Tensor pulls = at::ones({60, 2});
    pulls.select(1, 1).fill_(nan);
    PulledRun run(pulls, at::ones({2}), options, *communicator);
    int overflows = 0;
    run.events.on_message = [&](const std::string&) { ++overflows; };
    const std::string message = failure_of(run, ErrorKind::do_not_requeue);
    EXPECT_EQ(overflows, 16);
    expect_words(message, {policy == OverflowPolicy::retry ? "step 1:" : "step 17:", "micro-batch 0",
                           "the gradient of weight", "loss 1;", "the loss scale is at its minimum, 1"});
    EXPECT_EQ(numbers(run.weight()), (std::vector<double>{1, 1}));
  }
}

TEST(Scaling, ALossThatIsNotFiniteEndsARetryAtOnce) {
  const auto communicator = make();
  PulledRun run(at::ones({2, 1}), at::full({1}, inf), fp16_descent(0.1, 2, 65536.0), *communicator);
  expect_words(failure_of(run, ErrorKind::do_not_requeue),
               {"step 1:", "loss inf", "micro-batch 0, the loss;", "no loss scale cures"});
  EXPECT_EQ(run.trainer().loss_scaler().scale(), 65536.0F);
}

/// Five parameters whose gradients overflow in float32 at the loss scale that there is.
TEST(Scaling, NamesTheFirstThreeOfManyTensors) {
  const auto communicator = make();
  const RowDataset data(at::full({2, 1}, 1e36));
  torch::nn::Module model;
  std::vector<at::Tensor> parameters;
  for (const char* name : {"a", "b", "c", "d", "e"})
    parameters.push_back(model.register_parameter(name, at::ones({1})));
  const auto loss = [&](const Batch& batch) -> Loss {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& parameter : parameters) sum = sum + (parameter * batch.inputs).sum();
    return sum;
  };
  TrainerOptions options = fp16_descent(0.1, 2, 65536.0);
  options.loss_scaler.min_scale = 65536.0;
  Trainer trainer(model, loss, data, options, *communicator);
  try {
    trainer.take_step();
    ADD_FAILURE() << "an infinite gradient was applied";
  } catch (const Error& error) {
    expect_words(error.what(), {"the gradient of a, the gradient of b, the gradient of c and 2 more",
                                "the loss scale is at its minimum, 65536"});
  }
}

TEST(Scaling, TellsOfAnOverflowWithStepScalesMicroBatchAndParameter) {
  const auto communicator = make();
  TrainerOptions options = fp16_descent(0.1, 3, 1024.0);
  options.overflow_drill_steps = {1};
  PulledRun run(at::ones({6, 1}), at::zeros({1}), options, *communicator);
  std::vector<std::string> lines;
  run.events.on_message = [&](const std::string& line) { lines.push_back(line); };
  run.advance();
  EXPECT_EQ(lines.size(), 1U);
  if (!lines.empty()) expect_words(lines[0], {"step 2:", "1024 -> 512", "micro-batch 2", "the gradient of weight"});
}

TEST(Cases, C045OverflowSeenByOneRankOnly) {
  const auto communicator = make();
  struct Poison {
    std::size_t micro_batch;
    double value;
  };
  const std::vector<std::vector<Poison>> kinds{{{3, inf}}, {{3, nan}}, {{1, -inf}}, {{0, inf}, {3, -inf}}};
  for (const auto& kind : kinds) {
    std::vector<double> pulls(20, 1.0);  // five steps of four micro-batches
    for (const Poison& poison : kind) pulls[8 + poison.micro_batch] = poison.value;
    TrainerOptions options = fp16_descent(1.0, 4, 65536.0);
    options.on_overflow = OverflowPolicy::skip;
    PulledRun run(column(pulls, at::kFloat), at::zeros({1}), options, *communicator);
    run.advance();
    EXPECT_EQ(run.weight().item<double>(), -4.0);
    EXPECT_EQ(run.trainer().loss_scaler().scale(), 32768.0F);
    EXPECT_EQ(run.trainer().plan().progress().steps_applied, 4);
    EXPECT_EQ(run.trainer().plan().progress().steps_skipped, 1);
  }
}

TEST(Cases, C047SmallUpdatesAreNotLostInBf16) {
  const auto communicator = make();
  TrainerOptions options = descent(6e-4, 1);
  options.precision = Precision::bf16;
  options.optimizer = {};
  options.optimizer.kind = OptimizerKind::adam;
  const at::Tensor pulls = at::ones({100, 1});
  std::optional<MemoryCheckpoint> checkpoint;
  {
    PulledRun run(pulls, at::ones({1}), options, *communicator);
    run.advance();
    EXPECT_NEAR(run.weight().item<double>(), 0.94000196, 1e-7);
    checkpoint.emplace(run.trainer().snapshot(), *communicator);
  }
  EXPECT_EQ(checkpoint->tensors().front().type, ElementType::float32);
  PulledRun again(pulls, at::zeros({1}), options, *communicator, &*checkpoint);
  EXPECT_NEAR(again.weight().item<double>(), 0.94000196, 1e-7);
  EXPECT_TRUE(again.trainer().plan().finished());
}

TEST(Nonfinite, EndsTheRunUnlessStepsMayBeDropped) {
  const auto communicator = make();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    TrainerOptions options = descent(1.0, 2);
    options.precision = precision;
    PulledRun run(column({1, 1, 1, nan, 1, 1}, at::kFloat), at::zeros({1}), options, *communicator);
    expect_words(failure_of(run, ErrorKind::do_not_requeue),
                 {"step 2:", "micro-batch 1", "the gradient of weight", "--on-nonfinite", name_of(precision)});
    EXPECT_EQ(run.weight().item<double>(), -1.0);
    EXPECT_EQ(run.trainer().plan().progress().steps_taken, 1);
  }
}

TEST(Nonfinite, SkippedStepsHoldTheScheduleAndMayNotFollowEachOtherForEver) {
  const auto communicator = make();
  TrainerOptions options = descent(0.125, 1);
  options.plan.schedule.kind = ScheduleKind::linear;
  options.on_nonfinite = NonfinitePolicy::skip;
  options.max_nonfinite = 2;
  {
    PulledRun run(column({1, nan, nan, 1, inf, nan, 1, 1}), at::zeros({1}, at::kDouble), options, *communicator);
    const auto reports = run.advance();
    std::vector<double> expected;
    for (const double applied : {0, 1, 1, 1, 2, 2, 2, 3}) expected.push_back(0.125 * (8 - applied) / 8);
    expect_near(rates(reports), expected);
    EXPECT_EQ(run.trainer().plan().progress().steps_skipped, 4);
    EXPECT_NEAR(run.weight().item<double>(), -0.125 * (8 + 7 + 6 + 5) / 8, 1e-15);
  }
  // The count in a row does not start anew in another launch.
  const at::Tensor pulls = column({1, nan, nan, nan, 1, 1, 1, 1});
  std::optional<MemoryCheckpoint> checkpoint;
  {
    PulledRun run(pulls, at::zeros({1}, at::kDouble), options, *communicator);
    run.advance(2);
    checkpoint.emplace(run.trainer().snapshot(), *communicator);
  }
  PulledRun run(pulls, at::zeros({1}, at::kDouble), options, *communicator, &*checkpoint);
  expect_words(failure_of(run, ErrorKind::do_not_requeue), {"step 4:", "3 steps in a row", "--max-nonfinite is 2"});
}

}  // namespace
}  // namespace lockstep::test
