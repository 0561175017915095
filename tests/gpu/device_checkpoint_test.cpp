// Checkpoints between the CPU and devices: a hand-over changes nothing of what was saved.

#include "tests/gpu/on_device.hpp"
#include "tests/train/reading_store.hpp"

namespace lockstep::test {
namespace {

class DeviceCheckpoint : public OnDevice {};

TrainingCase handed_over(ModelOptions model, double dropout) {
  model.dropout = dropout;
  TrainingCase what{.name = model.kind, .model = model, .options = {}};
  what.options.plan.num_train_epochs.emplace("3");
  return what;
}

/// The same tensors to the bit and the same facts, but for those about who wrote it.
void expect_same_state(const MemoryCheckpoint& checkpoint, const MemoryCheckpoint& expected,
                       const std::string& name) {
  ASSERT_EQ(checkpoint.tensors().size(), expected.tensors().size()) << name;
  for (const TensorInfo& tensor : expected.tensors())
    EXPECT_EQ(checkpoint.bytes(tensor.section, tensor.name), expected.bytes(tensor.section, tensor.name))
        << name << ": " << tensor.section << ' ' << tensor.name;
  for (const auto& [group, attributes] : expected.attributes()) {
    if (group == "numerics" || group == "provenance") continue;
    for (const auto& [attribute, value] : attributes)
      EXPECT_EQ(checkpoint.attributes().at(group).at(attribute), value) << name << ": " << group << '/' << attribute;
  }
}

/// A training that goes on from `checkpoint` for `steps` steps, all that are left with -1. The state it began with
/// must be the one that was saved; it is saved again at the end.
void go_on(const TrainingCase& what, Communicator& communicator, std::optional<MemoryCheckpoint>& checkpoint,
           std::int64_t steps, TrainingResult& result, const std::string& name) {
  TrainingRun run(what, communicator, &*checkpoint);
  EXPECT_EQ(run.trainer().plan().progress().steps_taken, static_cast<std::int64_t>(result.losses.size())) << name;
  expect_same_state(MemoryCheckpoint(run.trainer().snapshot(), communicator), *checkpoint, name);
  run.advance(result, steps);
  checkpoint.emplace(run.trainer().snapshot(), communicator);
}

TEST_F(DeviceCheckpoint, GoesFromTheCpuToDevicesAndBackToTheBit) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    const TrainingCase what = handed_over(model, 0.0);
    const TrainingResult unbroken_on_cpu = unbroken(what);
    TrainingResult result;
    std::optional<MemoryCheckpoint> checkpoint;
    OneProcessCommunicator alone;
    {
      TrainingRun run(what, alone);
      run.advance(result, 2);
      checkpoint.emplace(run.trainer().snapshot(), alone);
    }
    on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
      go_on(what, devices, checkpoint, 3, result, text(what.name, " to the device"));
    });
    go_on(what, alone, checkpoint, -1, result, text(what.name, " back to the CPU"));
    EXPECT_EQ(result.rates, unbroken_on_cpu.rates) << what.name;
    ASSERT_EQ(result.losses.size(), unbroken_on_cpu.losses.size()) << what.name;
    for (std::size_t step = 0; step < result.losses.size(); ++step)
      EXPECT_NEAR(result.losses[step], unbroken_on_cpu.losses[step], 0.02) << what.name << ", step " << step + 1;
  }
}

TEST_F(DeviceCheckpoint, AStoppedRunGoesOnToTheBitOnAnyNumberOfDevices) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    TrainingCase what = handed_over(model, 0.3);
    what.options.precision = Precision::fp16;
    what.options.loss_scaler.init_scale = 1024.0;
    what.options.overflow_drill_steps = {1, 6};
    const Course expected = on_all_devices(what, exact_order());
    for (const std::int64_t stop : {2, 5})
      for (int num_ranks = 1; num_ranks <= session().num_ranks(); ++num_ranks) {
        TrainingResult result;
        std::optional<MemoryCheckpoint> checkpoint;
        on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
          TrainingRun run(what, devices);
          run.advance(result, stop);
          checkpoint.emplace(run.trainer().snapshot(), devices);
        });
        on_first_devices(num_ranks, exact_order(), [&](Communicator& devices) {
          go_on(what, devices, checkpoint, -1, result, what.name);
          EXPECT_EQ(result, expected.result)
              << what.name << " stopped after " << stop << ", resumed on " << num_ranks;
        });
      }
  }
}

TEST_F(DeviceCheckpoint, ASaveHoldsTheStateOfItsStepAlsoWhenItIsReadSomeStepsLater) {
  const TrainingCase what = handed_over(TrainingCase::cnn(), 0.3);
  RunControl control;
  control.save_steps = 3;
  std::map<Reading, ReadingStore> stores;
  on_first_devices(session().num_ranks(), exact_order(), [&](Communicator& devices) {
    for (const Reading reading : {Reading::at_once, Reading::as_late_as_it_may}) {
      ReadingStore& store = stores.emplace(reading, reading).first->second;
      TrainingRun run(what, devices);
      EXPECT_EQ(run.trainer().run(control, &store), RunOutcome::finished);
    }
  });
  EXPECT_GT(stores.at(Reading::at_once).read().size(), 2U);
  EXPECT_TRUE(stores.at(Reading::as_late_as_it_may).read() == stores.at(Reading::at_once).read());
}

}  // namespace
}  // namespace lockstep::test
