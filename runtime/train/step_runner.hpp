#pragma once

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "runtime/plan/communicator.hpp"
#include "runtime/plan/training_plan.hpp"
#include "runtime/train/gradient_buckets.hpp"
#include "runtime/train/loss.hpp"
#include "runtime/train/micro_batches.hpp"
#include "runtime/train/sharded_optimizer.hpp"
#include "runtime/train/step_exchange.hpp"

namespace lockstep {

/// One try at a step: computed, and its update under way.
struct StepAttempt {
  StepPlan step;
  StepShare share;
  std::int64_t number = 1;  ///< 1: the first try
  double loss_scale = 1.0;
  bool drill = false;
  StepFlags mine;
  StepTotals totals;  ///< loss, norm and whether they are finite: from StepRunner::settle() on
  std::chrono::steady_clock::time_point start;
};

/// Computes a step and updates the state with it, unless it is not finite: micro-batches, exchange, clipping,
/// optimizer. What becomes of a step that was not finite is its caller's business. Where transfers overlap, nothing
/// here waits for the device but settle(), so that a second step can be launched before the first is settled.
class StepRunner {
 public:
  struct Settings {
    MicroBatchRunner::Settings micro_batches;
    double max_grad_norm = 0.0;  ///< 0: not clipped
    std::int64_t bucket_bytes = 0;
    std::set<std::int64_t> overflow_drill_steps;
  };

  /// **Collective.** `most_micro_batches` of a rank in a step. What is given by reference must outlive it.
  StepRunner(torch::nn::Module& module, LossFunction loss, const Dataset& data, FlatState& state,
             ShardedOptimizer& optimizer, Communicator& communicator, Settings settings,
             std::int64_t most_micro_batches, DeviceGraphMaker make_graph);

  /// Transfers, and with them the device's work, go on beside the host.
  bool overlaps() const { return overlaps_; }

  /// **Collective.** The next step of `plan`. `before_update` is called when the state is about to change. Throws on
  /// all ranks what any rank's micro-batches threw.
  StepAttempt attempt(const TrainingPlan& plan, double loss_scale, std::int64_t number, const StepFlags& mine,
                      const std::function<void()>& before_update);

  /// Waits for the numbers of the oldest attempt that is not settled. Local.
  void settle(StepAttempt& attempt);

  /// The update of `failed`, which was not finite, has not happened, nor that of the one launched `ahead` of it.
  void take_back(const StepAttempt& failed, const std::optional<StepAttempt>& ahead);

  /// **Collective.** Where the numbers of an attempt stopped being finite: "first in micro-batch 3, the loss".
  std::string culprit_text(const TrainingPlan& plan, const StepAttempt& failed);

  /// What a person should know of the way micro-batches are computed, once.
  std::optional<std::string> take_note() { return micro_batches_.take_note(); }

 private:
  /// What an update is multiplied with and depends on: what the host knows, or what the device will.
  struct UpdateTerms {
    double factor = 1.0;
    at::Tensor factor_on_device;  ///< a scalar, instead of `factor`
    at::Tensor blocked;           ///< a scalar: the update changes nothing where it is 1
  };

  void read_ahead(const TrainingPlan& plan);
  UpdateTerms terms_of(const StepTotals& totals);
  void apply(const StepTotals& totals, const UpdateTerms& terms, double learning_rate);

  FlatState& state_;
  ShardedOptimizer& optimizer_;
  Communicator& communicator_;
  Settings settings_;
  bool overlaps_;
  GradientBuckets buckets_;
  MicroBatchRunner micro_batches_;
  StepExchange exchange_;
  at::Tensor blocked_;  ///< on the device: 1 from a step that was not finite until the host has seen it
};

}  // namespace lockstep
