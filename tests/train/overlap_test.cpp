#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/comm/device_communicator.hpp"
#include "runtime/train/block_squares.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/broken_training.hpp"
#include "tests/train/early_start.hpp"
#include "tests/train/error_words.hpp"

namespace lockstep::test {
namespace {

std::string joined(const StartLog& log) {
  return std::accumulate(log.begin(), log.end(), std::string(),
                         [](const std::string& all, const std::string& entry) { return all + entry + " "; });
}

/// How many transfers a step started.
std::int64_t starts_of(const StartLog& log) {
  return std::count_if(log.begin(), log.end(), [](const std::string& entry) { return entry != "reduce"; });
}

TEST(Overlap, WholeBucketsLeaveInOneOrderOnAllRanksAndChangeNoBit) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    TrainingCase what{.name = model.kind, .model = model, .options = {}};
    what.options.bucket_bytes = 1024;
    const TrainingResult expected = unbroken(what);
    const auto below = make(CommunicatorKind::automatic);
    EarlyStart communicator(*below);
    TrainingRun run(what, communicator);
    TrainingResult result;
    run.advance(result, 1);
    const StartLog of_step = communicator.log();
    EXPECT_GE(starts_of(of_step), 3) << joined(of_step);
    for (const std::string& of_rank : gather_texts(communicator, joined(of_step)))
      EXPECT_EQ(of_rank, joined(of_step));
    run.advance(result);
    EXPECT_EQ(result, expected) << what.name << " over " << communicator.name();
  }
}

/// A training whose gradients and weights go through a device's exchange, in several buckets.
TrainingResult over_device(TrainingCase what, ReductionOrder order) {
  what.options.bucket_bytes = 1024;
  DeviceSettings settings;
  settings.reduction = order;
  DeviceCommunicator device(session(), std::make_unique<FakeDevice>(session(), Pace::at_once), settings);
  EarlyStart communicator(device);
  TrainingRun run(what, communicator);
  TrainingResult result;
  run.advance(result);
  return result;
}

TEST(Overlap, TheExactOrderOfADeviceGivesTheBitsOfTheHost) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    const TrainingCase what{.name = model.kind, .model = model, .options = {}};
    EXPECT_EQ(over_device(what, ReductionOrder::exact), unbroken(what)) << what.name;
  }
}

TEST(Overlap, TheFastOrderOfADeviceGivesTheSameTrainingButForRounding) {
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  const TrainingResult expected = unbroken(what);
  const TrainingResult result = over_device(what, ReductionOrder::fast);
  EXPECT_EQ(result.rates, expected.rates);
  ASSERT_EQ(result.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-4);
}

TEST(Device, WhoseHalfOfLibTorchCameTooLateIsRefused) {
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  DeviceCommunicator device(session(), std::make_unique<FakeDevice>(session(), Pace::at_once), DeviceSettings{});
  expect_words(error_of([&] { TrainingRun(what, device); }), {"CUDA half", "make the communicator before the model"});
}

TEST(Overlap, OneBucketWhenTheyMayBeLarge) {
  TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  const auto below = make(CommunicatorKind::automatic);
  EarlyStart communicator(*below);
  TrainingRun run(what, communicator);
  TrainingResult result;
  run.advance(result, 1);
  EXPECT_EQ(starts_of(communicator.log()), 1) << joined(communicator.log());
}

/// Layers of which the loss reaches only the first and the last; the second is frozen.
class PartlyUsed final : public torch::nn::Module {
 public:
  PartlyUsed() {
    for (const char* name : {"first", "frozen", "unused", "last"})
      layers.push_back(register_module(name, torch::nn::Linear(16, 16)));
    for (at::Tensor& parameter : layers[1]->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& inputs) {
    return layers[3]->forward(layers[1]->forward(layers[0]->forward(inputs)));
  }
  std::vector<torch::nn::Linear> layers;
};

/// Rows of numbers.
class Rows final : public Dataset {
 public:
  std::int64_t num_samples() const override { return 12; }
  Batch get(std::span<const std::int64_t> ids) const override {
    std::vector<at::Tensor> rows;
    for (const std::int64_t id : ids) rows.push_back(at::arange(16, at::kFloat).add(id).div(16).unsqueeze(0));
    return {at::cat(rows), at::cat(rows)};
  }
};

std::string digest_of_partly_used(Communicator& communicator) {
  torch::manual_seed(5);
  PartlyUsed model;
  const Rows data;
  TrainerOptions options;
  options.plan.global_batch_size = 6;
  options.plan.micro_batch_size = 2;
  options.plan.num_train_epochs = "2";
  options.bucket_bytes = 256;
  Trainer trainer(
      model, [&](const Batch& batch) { return Loss(model.forward(batch.inputs).sub(batch.targets).square().mean()); },
      data, options, communicator);
  while (!trainer.plan().finished()) trainer.take_step();
  return weights_digest(model);
}

TEST(Overlap, ParametersWithoutAGradientHoldNothingUp) {
  OneProcessCommunicator alone;
  const std::string expected = digest_of_partly_used(alone);
  const auto below = make(CommunicatorKind::automatic);
  EarlyStart communicator(*below);
  EXPECT_EQ(digest_of_partly_used(communicator), expected);
  EXPECT_GE(starts_of(communicator.log()), 4 * 2);
}

/// Adds noise when a sample is read, as augmentation does, and tells how often samples were read.
class NoisyDataset final : public Dataset {
 public:
  std::int64_t num_samples() const override { return 45; }
  Batch get(std::span<const std::int64_t> ids) const override {
    ++num_reads;
    const auto count = static_cast<std::int64_t>(ids.size());
    const at::Tensor classes = at::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size()), at::kLong).remainder(5);
    return {at::randn({count, 1, 8, 8}).add(classes.view({-1, 1, 1, 1})), classes};
  }
  mutable std::int64_t num_reads = 0;
};

/// With `overflows` a step is tried twice, and read once more to find what was not finite.
std::string digest_of_noisy(Communicator& communicator, const std::set<std::int64_t>& overflows) {
  TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};  // with dropout
  what.options.precision = Precision::fp16;
  what.options.loss_scaler.init_scale = 64;  // no other step overflows
  what.options.overflow_drill_steps = overflows;
  const NoisyDataset data;
  const auto model = make_model(what.model, 11);
  Trainer trainer(*model, make_loss("cross-entropy", *model), data, what.resolved(), communicator);
  std::int64_t num_micro_batches = 0;
  while (!trainer.plan().finished()) {
    const StepReport report = trainer.take_step();
    const StepShare share =
        trainer.plan().batch().share_at(report.plan.first_sample, report.plan.num_samples, communicator.rank());
    num_micro_batches += share.micro_batches.size();
  }
  if (overflows.empty()) {
    EXPECT_EQ(data.num_reads, num_micro_batches);
  }
  return weights_digest(*model);
}

TEST(Overlap, ReadingAheadChangesNoRandomNumber) {
  for (const std::set<std::int64_t>& overflows : {std::set<std::int64_t>{}, {0, 2}}) {
    OneProcessCommunicator alone;
    const std::string expected = digest_of_noisy(alone, overflows);
    const auto below = make(CommunicatorKind::automatic);
    EarlyStart communicator(*below);
    EXPECT_EQ(digest_of_noisy(communicator, overflows), expected);
  }
}

TEST(Overlap, AFailedMicroBatchIsThrownOnAllRanksAndLeavesNoTransferOut) {
  const auto below = make(CommunicatorKind::automatic);
  EarlyStart communicator(*below);
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  RandomDataset data(what.num_samples, what.model.input_shape, what.model.num_outputs);
  const auto model = make_model(what.model, 11);
  const bool fails_here = communicator.rank() == communicator.num_ranks() - 1;
  Trainer trainer(
      *model,
      [&](const Batch& batch) -> Loss {
        if (fails_here) throw Error(ErrorKind::do_not_requeue, "the loss cannot be computed");
        return make_loss("cross-entropy", *model)(batch);
      },
      data, what.resolved(), communicator);
  EXPECT_THROW(trainer.take_step(), Error);
}

TEST(BlockSquares, OfADeviceAreThoseOfTheHostAndDoNotKnowHowManyAreAsked) {
  constexpr std::int64_t block = 1024;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor flat = at::randn({40 * block}, type);
    const std::vector<double> expected = block_squares_on_host(flat, 40, block);
    const at::Tensor sums = block_squares_on_device(flat, 40, block);
    for (std::int64_t i = 0; i < 40; ++i) {
      EXPECT_NEAR(sums[i].item<double>(), expected[static_cast<std::size_t>(i)], 1e-10 * block);
      const at::Tensor alone = block_squares_on_device(flat.narrow(0, i * block, block), 1, block);
      EXPECT_EQ(alone.item<double>(), sums[i].item<double>());
    }
  }
}

}  // namespace
}  // namespace lockstep::test
