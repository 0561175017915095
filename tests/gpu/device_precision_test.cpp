// 16 bits on devices: the loss scale moves as on the CPU, and overflows cost what they cost there.

#include "tests/gpu/on_device.hpp"

namespace lockstep::test {
namespace {

class DevicePrecision : public OnDevice {};

TrainingCase in_precision(Precision precision, const ModelOptions& model) {
  TrainingCase what{.name = text(model.kind, " in ", name_of(precision)), .model = model, .options = {}};
  what.options.precision = precision;
  what.options.loss_scaler.init_scale = 1024.0;
  what.options.plan.num_train_epochs.emplace("3");
  what.options.plan.schedule.kind = ScheduleKind::cosine;
  return what;
}

/// Overflows in the first two steps bring the scale from 1024 to 256; it grows again after five steps.
TrainingCase drilled(const ModelOptions& model) {
  TrainingCase what = in_precision(Precision::fp16, model);
  what.options.loss_scaler.growth_interval = 5;
  what.options.overflow_drill_steps = {0, 1};
  return what;
}

TEST_F(DevicePrecision, TheLossScaleMovesAsOnTheCpu) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    const TrainingCase what = drilled(model);
    const Course expected = on_cpu(what);
    const Course course = on_all_devices(what, exact_order());
    EXPECT_EQ(course.result.scales, (std::vector<double>{512, 256, 256, 256, 256, 256, 512, 512, 512})) << what.name;
    EXPECT_EQ(course.result.scales, expected.result.scales) << what.name;
    EXPECT_EQ(course.result.trackers, expected.result.trackers) << what.name;
    EXPECT_EQ(course.result.rates, expected.result.rates) << what.name;
    EXPECT_EQ(course.messages.size(), 2U) << what.name;
  }
}

TEST_F(DevicePrecision, DroppedStepsHoldTheScheduleAsOnTheCpu) {
  TrainingCase overflowing = drilled(TrainingCase::mlp());
  overflowing.options.on_overflow = OverflowPolicy::skip;
  TrainingCase nonfinite = in_precision(Precision::bf16, TrainingCase::mlp());
  nonfinite.options.overflow_drill_steps = {1, 3};
  nonfinite.options.on_nonfinite = NonfinitePolicy::skip;
  for (const TrainingCase& what : {overflowing, nonfinite}) {
    const Course expected = on_cpu(what);
    const Course course = on_all_devices(what, exact_order());
    EXPECT_EQ(course.result.rates, expected.result.rates) << what.name;
    EXPECT_EQ(course.result.scales, expected.result.scales) << what.name;
    EXPECT_EQ(course.messages.size(), 2U) << what.name;
  }
}

TEST_F(DevicePrecision, FollowsTheCpuInThirtyTwoBits) {
  for (ModelOptions model : {TrainingCase::mlp(), TrainingCase::cnn()})
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      model.dropout = 0.0;
      const TrainingCase what = in_precision(precision, model);
      const Course expected = on_cpu(in_precision(Precision::fp32, model));
      const Course course = on_all_devices(what, exact_order());
      ASSERT_EQ(course.result.losses.size(), expected.result.losses.size());
      for (std::size_t step = 0; step < expected.result.losses.size(); ++step)
        EXPECT_NEAR(course.result.losses[step], expected.result.losses[step], 0.05) << what.name << ", " << step + 1;
      EXPECT_NE(course.result.losses, expected.result.losses) << what.name << " was computed in 32 bits";
    }
}

TEST_F(DevicePrecision, IsTheSameRunOnAnyNumberOfDevices) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()})
    for (const TrainingCase& what : {drilled(model), in_precision(Precision::bf16, model)}) {
      const auto expected = on_devices(1, what, exact_order());
      const Course course = on_all_devices(what, exact_order());
      if (!expected) continue;  // another rank's
      EXPECT_EQ(course.result, expected->result) << what.name;
    }
}

}  // namespace
}  // namespace lockstep::test
