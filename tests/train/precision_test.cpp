// Training in 16 bits: the same course on any number of ranks, through overflows, stops and resumes.

#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "tests/train/broken_training.hpp"

namespace lockstep::test {
namespace {

TrainingCase sixteen_bit(const ModelOptions& model, Precision precision) {
  TrainingCase what{.name = model.kind + " in " + name_of(precision), .model = model, .options = {}};
  what.options.precision = precision;
  what.options.loss_scaler.init_scale = 1024.0;
  return what;
}

/// Overflows in the first two steps bring the scale from 1024 to 256; it grows again after five steps.
TrainingCase at_scale_256(const ModelOptions& model) {
  TrainingCase what = sixteen_bit(model, Precision::fp16);
  what.options.plan.num_train_epochs = "3";
  what.options.plan.schedule.kind = ScheduleKind::cosine;
  what.options.loss_scaler.growth_interval = 5;
  what.options.overflow_drill_steps = {0, 1};
  return what;
}

TEST(Precision, AResumedScalerGoesOnToTheBit) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    const TrainingCase what = at_scale_256(model);
    const TrainingResult expected = unbroken(what);
    EXPECT_EQ(expected.scales, (std::vector<double>{512, 256, 256, 256, 256, 256, 512, 512, 512}));
    EXPECT_EQ(expected.trackers, (std::vector<std::int64_t>{1, 1, 2, 3, 4, 0, 1, 2, 3}));
    for (const std::int64_t stop : {3, 6})
      for (int ranks = 1; ranks <= session().num_ranks(); ++ranks) {
        const auto result = stopped_and_resumed(what, stop, ranks);
        if (!result) continue;
        EXPECT_EQ(*result, expected) << what.name << " stopped after " << stop << ", resumed on " << ranks;
      }
  }
}

/// The drill makes the gradient of the last micro-batch infinite: one rank sees it.
TEST(Precision, SameBitsOnAnyRanksWithOverflowsOnOneOfThem) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    TrainingCase retried = sixteen_bit(model, Precision::fp16);
    retried.options.overflow_drill_steps = {1, 3};
    TrainingCase skipped = retried;
    skipped.options.on_overflow = OverflowPolicy::skip;
    TrainingCase dropped = sixteen_bit(model, Precision::bf16);
    dropped.options.overflow_drill_steps = {1, 3};
    dropped.options.on_nonfinite = NonfinitePolicy::skip;
    for (const TrainingCase& what : {retried, skipped, dropped}) {
      const TrainingResult expected = unbroken(what);
      EXPECT_EQ(expected.losses.size(), 6U);
      for (const CommunicatorKind kind : {CommunicatorKind::automatic, CommunicatorKind::mpi}) {
        const auto communicator = make(kind);
        TrainingRun run(what, *communicator);
        TrainingResult result;
        run.advance(result);
        EXPECT_EQ(result, expected) << what.name << " over " << communicator->name();
      }
    }
  }
}

TEST(Precision, Bf16RatesAreTheCosineAtEveryStep) {
  TrainingCase what = sixteen_bit(TrainingCase::mlp(), Precision::bf16);
  what.options.plan.num_train_epochs = "7";
  what.options.plan.schedule.kind = ScheduleKind::cosine;
  what.options.plan.schedule.warmup_steps = 3;
  const auto communicator = make();
  TrainingRun run(what, *communicator);
  TrainingResult result;
  run.advance(result);
  ASSERT_EQ(result.rates.size(), 21U);
  for (int step = 0; step < 21; ++step) {
    const double factor = step < 3 ? step / 3.0 : 0.5 * (1.0 + std::cos(std::numbers::pi * (step - 3) / 18.0));
    EXPECT_NEAR(result.rates[static_cast<std::size_t>(step)], 1e-3 * factor, 1e-17) << step;
  }
}

/// A model without dropout, one micro-batch a step, plain gradient descent: easy to do by hand.
TrainingCase by_hand(Precision precision) {
  ModelOptions model = TrainingCase::mlp();
  model.dropout = 0.0;
  TrainingCase what = sixteen_bit(model, precision);
  what.num_samples = 40;
  what.global_batch_size = what.micro_batch_size = 8;
  what.options.plan.num_train_epochs = "1";
  what.options.plan.shuffle = ShuffleKind::sequential;
  what.options.plan.schedule.kind = ScheduleKind::constant;
  what.options.plan.schedule.learning_rate = 0.05;
  what.options.optimizer.kind = OptimizerKind::sgd;
  what.options.optimizer.momentum = 0.0;
  return what;
}

/// LibTorch's own autocast, as a program without us would switch it on.
template <class Work>
auto autocasting(at::ScalarType type, const Work& work) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, type);
  auto result = work();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return result;
}

TEST(Precision, ComputesWhatLibTorchDoesByHand) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const TrainingCase what = by_hand(precision);
    const at::ScalarType type = precision == Precision::fp16 ? at::kHalf : at::kBFloat16;
    const double scale = precision == Precision::fp16 ? 1024.0 : 1.0;
    const RandomDataset data(what.num_samples, what.model.input_shape, what.model.num_outputs);
    const auto model = make_model(what.model, 11);
    for (std::int64_t first = 0; first < 40; first += 8) {
      const std::vector<std::int64_t> ids{first,     first + 1, first + 2, first + 3,
                                          first + 4, first + 5, first + 6, first + 7};
      const Batch batch = data.get(ids);
      const at::Tensor loss =
          autocasting(type, [&] { return at::cross_entropy_loss(model->forward(batch.inputs), batch.targets); });
      (loss * scale).backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) {
        parameter.sub_(parameter.grad() / scale, 0.05);
        parameter.mutable_grad().reset();
      }
    }
    const auto communicator = make();
    TrainingRun run(what, *communicator);
    TrainingResult result;
    run.advance(result);
    const auto expected = model->named_parameters();
    for (const auto& item : run.model().named_parameters())
      EXPECT_TRUE(at::allclose(item.value(), expected[item.key()], 1e-6, 1e-7)) << item.key() << " in " << what.name;

    // Evaluation computes under the same precision.
    const at::NoGradGuard no_grad;
    std::vector<std::int64_t> ids(40);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
    const Batch all = data.get(ids);
    const auto loss_in = [&](bool cast) {
      const auto loss = [&] { return at::cross_entropy_loss(run.model().forward(all.inputs), all.targets); };
      return (cast ? autocasting(type, loss) : loss()).item<double>();
    };
    const auto metrics = run.trainer().evaluate(data, make_metrics("cross-entropy", run.model()));
    EXPECT_NEAR(metrics.at("loss"), loss_in(true), 1e-6);
    EXPECT_GT(std::abs(metrics.at("loss") - loss_in(false)), 1e-6);
  }
}

/// Losses and buffers of one step of the CNN, with or without an overflow in it.
struct OneStep {
  double loss = 0.0;
  std::int64_t attempts = 0;
  std::map<std::string, at::Tensor> buffers;
};

OneStep one_step(bool overflow, OverflowPolicy policy) {
  TrainingCase what = sixteen_bit(TrainingCase::cnn(), Precision::fp16);
  what.options.on_overflow = policy;
  if (overflow) what.options.overflow_drill_steps = {0};
  const auto communicator = make();
  TrainingRun run(what, *communicator);
  const StepReport report = run.trainer().take_step();
  OneStep step{report.loss, report.attempts, {}};
  for (const auto& item : run.model().named_buffers()) step.buffers[item.key()] = item.value().clone();
  return step;
}

TEST(Precision, BuffersAndRandomNumbersAreAsIfTheFailedAttemptHadNotBeen) {
  const OneStep plain = one_step(false, OverflowPolicy::retry);
  const OneStep retried = one_step(true, OverflowPolicy::retry);
  EXPECT_EQ(plain.attempts, 1);
  EXPECT_EQ(retried.attempts, 2);
  EXPECT_EQ(retried.loss, plain.loss);  // dropout drew the same numbers
  for (const auto& [name, buffer] : plain.buffers) EXPECT_TRUE(at::equal(buffer, retried.buffers.at(name))) << name;
  EXPECT_EQ(plain.buffers.at("norm1.num_batches_tracked").item<std::int64_t>(), 1);

  const OneStep skipped = one_step(true, OverflowPolicy::skip);
  const auto untouched = make_model(TrainingCase::cnn(), 11)->named_buffers();
  for (const auto& item : untouched) {
    EXPECT_TRUE(at::equal(item.value(), skipped.buffers.at(item.key()))) << item.key();
    EXPECT_FALSE(at::equal(item.value(), plain.buffers.at(item.key()))) << item.key();
  }
}

TEST(Precision, CastWeightsAreNotKeptOverAStepWithinAnAutocastOfTheCallers) {
  const TrainingCase what = by_hand(Precision::bf16);
  const TrainingResult expected = unbroken(what);
  at::autocast::increment_nesting();
  const auto communicator = make();
  TrainingRun run(what, *communicator);
  TrainingResult result;
  run.advance(result);
  at::autocast::decrement_nesting();
  EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace lockstep::test
