#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "runtime/train/micro_batches.hpp"
#include "tests/train/broken_training.hpp"

namespace lockstep::test {
namespace {

/// A graph of the host: it records a function instead of kernels. Like a device's, recording changes nothing that
/// the device holds, and a replay does nothing on the host; test models ask `phase` for that.
class HostGraph final : public DeviceGraph {
 public:
  enum class Phase { as_it_is, recording, replaying };
  static inline Phase phase = Phase::as_it_is;
  static inline int num_replays = 0;

  void record(const std::function<void()>& work) override {
    const GeneratorGuard generator{at::Device(at::kCPU)};
    const PhaseGuard guard(Phase::recording);
    work();
    work_ = work;
  }
  void replay() override {
    ++num_replays;
    const PhaseGuard guard(Phase::replaying);
    work_();
  }

 private:
  struct PhaseGuard {
    explicit PhaseGuard(Phase now) { phase = now; }
    ~PhaseGuard() { phase = Phase::as_it_is; }
  };
  std::function<void()> work_;
};

DeviceGraphMaker host_graphs() {
  HostGraph::num_replays = 0;
  return [] { return std::make_unique<HostGraph>(); };
}

TEST(MicroBatchGraph, ChangesNoBitAndRunsOnlyFullMicroBatches) {
  TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  what.options.precision = Precision::fp16;
  what.options.overflow_drill_steps = {1};
  const TrainingResult expected = unbroken(what);
  what.options.make_graph = host_graphs();
  EXPECT_EQ(unbroken(what), expected);
  // An epoch of 45 samples has steps of 20, 20 and 5: 6 + 6 + 1 full micro-batches of 3, and each step a shorter
  // last one. The drill's second attempt takes 6 more; the first three are warm-ups.
  EXPECT_EQ(HostGraph::num_replays, 2 * (6 + 6 + 1) + 6 - 3);
}

/// Counts its forward passes on the host, and in a buffer on the device.
class CountedModel final : public torch::nn::Module {
 public:
  CountedModel()
      : layer(register_module("layer", torch::nn::Linear(4, 1))),
        steps(register_buffer("steps", at::scalar_tensor(0, at::kLong))),
        seen(register_buffer("seen", at::scalar_tensor(0.0, at::kDouble))) {}

  at::Tensor forward(const at::Tensor& inputs) {
    if (HostGraph::phase != HostGraph::Phase::replaying) steps.add_(1);
    if (HostGraph::phase != HostGraph::Phase::recording) seen.add_(1);
    return layer->forward(inputs.flatten(1)).square().mean();
  }

  torch::nn::Linear layer;
  at::Tensor steps;
  at::Tensor seen;
};

/// A training of a CountedModel: 12 steps of 2 micro-batches. `loss` may do more than the model.
struct CountedTraining {
  explicit CountedTraining(DeviceGraphMaker make_graph, std::function<Loss(at::Tensor)> loss = {}) {
    torch::manual_seed(5);
    auto model = std::make_shared<CountedModel>();
    const RandomDataset data(24, {1, 2, 2}, 2);
    TrainerOptions options;
    options.plan.global_batch_size = 4;
    options.plan.micro_batch_size = 2;
    options.plan.max_steps = 12;
    options.make_graph = std::move(make_graph);
    OneProcessCommunicator alone;
    {
      Trainer trainer(
          *model,
          [&](const Batch& batch) {
            const at::Tensor value = model->forward(batch.inputs);
            return loss ? loss(value) : Loss(value);
          },
          data, options, alone);
      TrainerEvents events;
      events.on_message = [this](const std::string& message) { messages.push_back(message); };
      while (!trainer.plan().finished()) trainer.take_step({}, events);
    }
    digest = weights_digest(*model);
    steps = model->steps.item<std::int64_t>();
    seen = model->seen.item<double>();
  }

  std::vector<std::string> messages;
  std::string digest;
  std::int64_t steps = 0;
  double seen = 0.0;
};

TEST(MicroBatchGraph, CountersOfTheHostGoOnAndBuffersOfTheDeviceMoveOnceAMicroBatch) {
  const CountedTraining expected{{}};
  EXPECT_EQ(expected.steps, 12);
  const CountedTraining by_graph(host_graphs());
  EXPECT_EQ(HostGraph::num_replays, 12 * 2 - 3);
  EXPECT_EQ(by_graph.steps, 12);
  EXPECT_EQ(by_graph.seen, expected.seen);
  EXPECT_EQ(by_graph.digest, expected.digest);
  EXPECT_TRUE(by_graph.messages.empty());
}

TEST(MicroBatchGraph, WhatCannotBeRecordedIsToldOnceAndRunsAsItIs) {
  const CountedTraining expected{{}};
  const CountedTraining without(host_graphs(), [](at::Tensor value) {
    if (HostGraph::phase == HostGraph::Phase::recording)
      throw std::runtime_error("operation not permitted when stream is capturing");
    return Loss(std::move(value));
  });
  EXPECT_EQ(HostGraph::num_replays, 0);
  EXPECT_EQ(without.digest, expected.digest);
  ASSERT_EQ(without.messages.size(), 1U);
  EXPECT_EQ(without.messages[0],
            "no CUDA graph, every kernel is launched by itself (operation not permitted when stream is capturing)");
}

TEST(MicroBatchGraph, ALossWithItsOwnWeightIsNotRecorded) {
  const auto weighted = [](const at::Tensor& value) { return Loss(value * 2, 2.0); };
  const CountedTraining expected({}, weighted);
  const CountedTraining without(host_graphs(), weighted);
  EXPECT_EQ(HostGraph::num_replays, 0);
  EXPECT_EQ(without.digest, expected.digest);
  EXPECT_EQ(without.messages.size(), 1U);
}

}  // namespace
}  // namespace lockstep::test
