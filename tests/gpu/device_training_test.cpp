// Training on devices: as on the CPU but for rounding, and to the last bit the same on any number of devices.

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

#include "tests/gpu/on_device.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

class DeviceTraining : public OnDevice {};

/// Dropout draws from the device's own generator: what is compared with the CPU has none.
TrainingCase without_dropout(ModelOptions model) {
  model.dropout = 0.0;
  TrainingCase what{.name = model.kind, .model = model, .options = {}};
  // A gradient near zero may have either sign after rounding: plain descent does not make a whole step of it.
  what.options.optimizer.kind = OptimizerKind::sgd;
  what.options.plan.schedule.learning_rate = 0.1;
  return what;
}

std::vector<TrainingCase> with_dropout() {
  TrainingCase mlp{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  TrainingCase cnn{.name = "cnn", .model = TrainingCase::cnn(), .options = {}};
  TrainingCase clipped = mlp;
  clipped.name = "clipped";
  clipped.options.max_grad_norm = 0.05;
  return {mlp, cnn, clipped};
}

/// Convolutions may round more than products of matrices; TF32 would be worse than either.
double tolerance_of(const TrainingCase& what) { return what.model.kind == "cnn" ? 5e-4 : 1e-4; }

TEST_F(DeviceTraining, FollowsTheCpu) {
  for (const TrainingCase& what : {without_dropout(TrainingCase::mlp()), without_dropout(TrainingCase::cnn())}) {
    const Course expected = on_cpu(what);
    ASSERT_EQ(expected.result.losses.size(), 6U);
    expect_near(on_all_devices(what, exact_order()), expected, tolerance_of(what), what.name);
  }
}

TEST_F(DeviceTraining, FollowsTheCpuWithAdamToo) {
  TrainingCase what = without_dropout(TrainingCase::mlp());
  what.options.optimizer.kind = OptimizerKind::adamw;
  what.options.plan.schedule.learning_rate = 1e-3;
  const Course expected = on_cpu(what);
  const Course course = on_all_devices(what, exact_order());
  ASSERT_EQ(course.result.losses.size(), expected.result.losses.size());
  for (std::size_t step = 0; step < expected.result.losses.size(); ++step)
    EXPECT_NEAR(course.result.losses[step], expected.result.losses[step], 2e-3) << "step " << step + 1;
}

TEST_F(DeviceTraining, IsTheSameRunOnAnyNumberOfDevices) {
  for (const TrainingCase& what : with_dropout()) {
    const auto expected = on_devices(1, what, exact_order());
    for (int num_ranks = 1; num_ranks <= session().num_ranks(); ++num_ranks) {
      const auto course = on_devices(num_ranks, what, exact_order());
      if (!expected || !course) continue;
      EXPECT_EQ(course->result, expected->result) << what.name << " on " << num_ranks << " devices";
    }
  }
}

/// With a constant buffer that is no number, as masks have it.
class MaskedModel final : public torch::nn::Module {
 public:
  MaskedModel()
      : weight(register_parameter("weight", at::ones({3}))),
        mask(register_buffer("mask", at::tensor({0.0, -inf, std::nan("")}, at::kFloat))) {}

  Loss loss(const Batch& batch) { return (batch.inputs * (weight + mask).narrow(0, 0, 1)).mean(); }

  static constexpr double inf = std::numeric_limits<double>::infinity();
  at::Tensor weight;
  at::Tensor mask;
};

TEST_F(DeviceTraining, LeavesConstantsThatAreNoNumbers) {
  on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
    MaskedModel model;
    const RowDataset data(at::ones({12, 1}));
    Trainer trainer(
        model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.1, 4, 2), devices);
    while (!trainer.plan().finished()) EXPECT_TRUE(trainer.take_step().applied);
    EXPECT_EQ(model.mask[1].item<double>(), -MaskedModel::inf);
    EXPECT_NEAR(model.weight[0].item<double>(), 1.0 - 0.1 * 3, 1e-6);
  });
}

TEST_F(DeviceTraining, LearnsWithDropout) {
  TrainingCase what = with_dropout().front();
  what.options.plan.num_train_epochs.emplace("80");
  what.options.plan.schedule.learning_rate = 1e-2;
  const Course course = on_all_devices(what, {ReductionOrder::fast});
  EXPECT_LT(course.result.losses.back(), 0.7 * course.result.losses.front());
}

TEST_F(DeviceTraining, GradientsThatLeaveEarlyChangeNoBit) {
  for (const TrainingCase& what : with_dropout()) {
    const auto in_buckets_of = [&](std::int64_t bytes) {
      return on_all_devices(what, exact_order(),
                            [=](TrainerOptions& options, Communicator&) { options.bucket_bytes = bytes; });
    };
    const Course whole = in_buckets_of(0);
    for (const std::int64_t bytes : {1, 4096, 100'000})
      EXPECT_EQ(in_buckets_of(bytes).result, whole.result) << what.name << " in buckets of " << bytes << " bytes";
  }
}

TEST_F(DeviceTraining, TheFastOrderFollowsTheExactOne) {
  for (const TrainingCase& what : {without_dropout(TrainingCase::mlp()), without_dropout(TrainingCase::cnn())}) {
    const Course exact = on_all_devices(what, exact_order());
    expect_near(on_all_devices(what, {ReductionOrder::fast}), exact, tolerance_of(what), what.name);
  }
}

TEST_F(DeviceTraining, GradientsTravelInRoundsWhereMemoryIsShort) {
  DeviceSettings little_memory = exact_order();
  little_memory.max_staging_bytes = 1 << 12;
  const TrainingCase what = with_dropout().front();
  const Course expected = on_all_devices(what, exact_order());
  EXPECT_EQ(on_all_devices(what, little_memory).result, expected.result);
}

TEST_F(DeviceTraining, EvaluatesAsTheCpuDoes) {
  const TrainingCase what = with_dropout()[1];
  const RandomDataset held_back(31, what.model.input_shape, what.model.num_outputs);
  const auto metrics = [&](Communicator& communicator) {
    TrainingRun run(what, communicator);
    return run.trainer().evaluate(held_back, make_metrics("cross-entropy", run.model()));
  };
  OneProcessCommunicator alone;
  const auto expected = metrics(alone);
  on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
    const auto result = metrics(devices);
    EXPECT_NEAR(result.at("loss"), expected.at("loss"), 1e-4);
    EXPECT_NEAR(result.at("accuracy"), expected.at("accuracy"), 1.01 / 31);  // a tie may go either way
  });
}

}  // namespace
}  // namespace lockstep::test
