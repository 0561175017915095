// Micro-batches as CUDA graphs: the bits of a run without them, also where they cannot be recorded.

#include <gtest/gtest.h>

#include "tests/gpu/on_device.hpp"

namespace lockstep::test {
namespace {

class DeviceGraphs : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (cpu_stands_in()) GTEST_SKIP() << "no device: the CPU computes without graphs";
  }
};

void use_graphs(TrainerOptions& options, Communicator& devices) {
  options.make_graph = [&devices] { return devices.make_graph(); };
}

TEST_F(DeviceGraphs, ChangeNoBit) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()})
    for (const Precision precision : {Precision::fp32, Precision::fp16, Precision::bf16}) {
      TrainingCase what{.name = text(model.kind, " in ", name_of(precision)), .model = model, .options = {}};
      what.options.precision = precision;
      what.options.loss_scaler.init_scale = 1024.0;
      what.options.plan.num_train_epochs.emplace("4");
      if (precision == Precision::fp16) what.options.overflow_drill_steps = {5};
      const Course expected = on_all_devices(what, exact_order());
      const Course course = on_all_devices(what, exact_order(), use_graphs);
      EXPECT_EQ(course.result, expected.result) << what.name;
      EXPECT_EQ(course.messages, expected.messages) << what.name << ": was recorded without a complaint";
    }
}

/// A training whose loss asks the device for a number, which no recording allows, and draws random numbers before.
Course asking_training(Communicator& devices, bool with_graphs) {
  const TrainingCase what{.name = "asking", .model = TrainingCase::mlp(), .options = {}};
  const RandomDataset data(what.num_samples, what.model.input_shape, what.model.num_outputs);
  const auto model = make_model(what.model, 11);
  TrainerOptions options = what.resolved();
  options.plan.num_train_epochs.emplace("4");
  if (with_graphs) use_graphs(options, devices);
  const LossFunction loss = make_loss("cross-entropy", *model);
  Trainer trainer(
      *model,
      [&](const Batch& batch) {
        Loss value = loss(batch);
        if (!std::isfinite(value.value.item<double>())) throw std::runtime_error("the loss is not finite");
        return value;
      },
      data, options, devices);
  Course course;
  TrainerEvents events;
  events.on_message = [&](const std::string& message) { course.messages.push_back(message); };
  while (!trainer.plan().finished()) course.result.losses.push_back(trainer.take_step({}, events).loss);
  course.result.digest = weights_digest(*model);
  return course;
}

TEST_F(DeviceGraphs, WhatCannotBeRecordedIsToldOnceAndRunsAsItIs) {
  on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
    const Course expected = asking_training(devices, false);
    const Course course = asking_training(devices, true);
    EXPECT_EQ(course.result, expected.result);
    ASSERT_EQ(course.messages.size(), 1U);
    EXPECT_EQ(course.messages[0].rfind("no CUDA graph, every kernel is launched by itself (", 0), 0U)
        << course.messages[0];
    // Nor does it stand in the way of a later recording.
    const TrainingCase next{.name = "next", .model = TrainingCase::mlp(), .options = {}};
    TrainingRun plain(next, devices);
    TrainingResult without;
    plain.advance(without);
    TrainingCase recorded = next;
    use_graphs(recorded.options, devices);
    TrainingRun by_graph(recorded, devices);
    TrainingResult with;
    by_graph.advance(with);
    EXPECT_EQ(with, without);
  });
}

}  // namespace
}  // namespace lockstep::test
