#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/error.hpp"
#include "runtime/plan/training_plan.hpp"
#include "runtime/train/dataset.hpp"
#include "runtime/train/device.hpp"
#include "runtime/train/flat_state.hpp"
#include "runtime/train/gradient_buckets.hpp"
#include "runtime/train/loss.hpp"
#include "runtime/train/micro_batch_graph.hpp"
#include "runtime/train/precision.hpp"

namespace lockstep {

/// What a rank's micro-batches of one step bring; the gradients are in the state's slots.
struct MicroBatchSums {
  LeafRange share;                     ///< the micro-batches of this rank
  std::vector<at::Tensor> losses;      ///< of each micro-batch that was run, where it was computed
  std::vector<double> weights;         ///< what each stands for: its samples, or its own weight
  std::vector<double> counter_counts;  ///< by how much each loose counter went up
  LossKind loss_kind = LossKind::none;
  std::uint64_t sample_mark = 0;  ///< of the samples this rank read (coverage)
  std::optional<Error> failure;   ///< what a micro-batch threw; the rest of the share was not run
};

/// Runs a rank's share of a step: forward, backward, gradients into the flat slots in tree order.
/// Local: what starts transfers is the caller's `on_whole`. Everything given must outlive it.
class MicroBatchRunner {
 public:
  struct Settings {
    std::uint64_t seed = 0;
    Precision precision = Precision::fp32;
    std::int64_t first_id = 0;  ///< of this rank's samples, where the data shards itself
  };

  MicroBatchRunner(torch::nn::Module& module, LossFunction loss, const Dataset& data, FlatState& state,
                   GradientBuckets& buckets, Settings settings, DeviceGraphMaker make_graph = {});

  /// The samples of a micro-batch of `share`: where they are in the epoch's order, and how many.
  static SampleRange samples_of(const BatchPlan& plan, const StepShare& share, std::int64_t micro_batch);

  /// `loss_scale` multiplies the loss before the backward pass. `overflow_drill` makes the gradients of the step's
  /// last micro-batch infinite, on the rank that runs it. `on_whole` hears of the buckets that this rank's share is
  /// done with (GradientBuckets::begin).
  MicroBatchSums run(const TrainingPlan& plan, const StepPlan& step, const StepShare& share, double loss_scale,
                     bool overflow_drill, const GradientBuckets::WholeBucket& on_whole);

  /// Reads the first micro-batch of a coming step while the device still computes.
  void read_ahead(const TrainingPlan& plan, const StepPlan& step, const StepShare& share);

  /// Why micro-batches do not run as a graph although they should; told once.
  std::optional<std::string> take_note() { return graph_ ? graph_->take_note() : std::nullopt; }

  /// The first micro-batch of `share` whose gradient (or loss) is not finite, found by running the share again; what
  /// was not finite is named. For messages only: it overwrites slot 0.
  struct Culprit {
    std::int64_t micro_batch = -1;
    std::string tensor;
  };
  std::optional<Culprit> first_nonfinite(const TrainingPlan& plan, const StepPlan& step, const StepShare& share,
                                         double loss_scale, bool overflow_drill);

 private:
  /// What a micro-batch works on.
  struct MicroBatch {
    std::int64_t step = 0;
    std::int64_t index = 0;
    Batch batch;
    double num_samples = 0.0;
    double fraction = 1.0;  ///< of a full micro-batch
    std::uint64_t sample_mark = 0;
    at::Tensor host_generator;  ///< its state after the samples were read: augmentation draws from it
  };

  MicroBatch read(const TrainingPlan& plan, const StepPlan& step, const StepShare& share, std::int64_t index);

  /// Reads it, unless it was read ahead; buffers and random numbers are then as a micro-batch finds them.
  MicroBatch load(const TrainingPlan& plan, const StepPlan& step, const StepShare& share, std::int64_t index);

  /// Forward and backward pass; without listening buckets gradients stay in the module's tensors.
  Loss differentiate(const MicroBatch& micro_batch, double loss_scale);
  Loss differentiate(const Batch& batch, const MicroBatchGraph::FactorOf& factor_of);

  torch::nn::Module& module_;
  LossFunction loss_;
  const Dataset& data_;
  FlatState& state_;
  GradientBuckets& buckets_;
  Settings settings_;
  BatchMover mover_;
  std::optional<MicroBatchGraph> graph_;
  std::optional<MicroBatch> ahead_;
};

/// Puts LibTorch's default generators, the host's and the device's, back to where they were: training seeds them for
/// each micro-batch.
class GeneratorGuard {
 public:
  explicit GeneratorGuard(c10::Device device);
  ~GeneratorGuard();
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

}  // namespace lockstep
