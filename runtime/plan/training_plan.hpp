#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/plan_change.hpp"
#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/plan_state.hpp"
#include "runtime/plan/progress.hpp"

namespace lockstep {

/// The step that comes next.
struct StepPlan {
  std::int64_t step = 0;  ///< 0-based: steps taken before it
  std::int64_t epoch = 0;
  std::int64_t first_sample = 0;  ///< position in the epoch's order
  std::int64_t num_samples = 0;
  std::int64_t num_micro_batches = 0;
  double position = 0.0;  ///< p of the schedule
  double learning_rate = 0.0;
};

/// A run's whole accounting: batches, length, order of samples and learning rates, with the progress so far.
/// Pure arithmetic: the same answers on every rank and on a login node. All costs are O(1) in samples and steps.
class TrainingPlan {
 public:
  /// A run from the start. Throws Error(usage) with the numbers when the options contradict each other or leave no
  /// step to take. Defaults: three epochs; fresh_batch() and LrSchedule say theirs.
  static TrainingPlan fresh(const PlanOptions& options, const DataShape& data, int num_ranks);

  /// A run that goes on from the attributes of a checkpoint, under today's options and ranks: applies the rules of
  /// resuming, refuses what they refuse, lists old -> new in changes(). Verifies the stored rate of the next step
  /// and the stored first sample ids under the stored plan before anything changes.
  static TrainingPlan resumed(const PlanOptions& options, const DataShape& data, int num_ranks,
                              const AttributeTree& stored);

  /// The plan exactly as it is stored, under its own options and ranks: for tools that show it. The
  /// function of a custom schedule is not stored: its rates are not a number.
  static TrainingPlan as_stored(const AttributeTree& stored);

  const BatchPlan& batch() const { return state_.batch; }
  const Progress& progress() const { return state_.progress; }
  /// Old -> new of every number of the plan, also of those that stay; empty for a fresh run.
  const std::vector<PlanChange>& changes() const { return changes_; }
  /// What a colleague would say about this plan.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Everything behind the plan: its end, schedule, base rate, coverage.
  const PlanState& state() const { return state_; }

  std::int64_t total_steps() const;  ///< steps taken so far and steps left
  std::int64_t steps_left() const;
  std::int64_t warmup_steps() const;
  double epochs_done() const;  ///< consumed epochs, fractional
  bool finished() const;

  /// The next step. Requires !finished().
  StepPlan next_step() const;

  /// The one after it, if there is one and the next one is applied: for reading ahead.
  std::optional<StepPlan> step_after_next() const;

  /// Moves past next_step(). `applied` is false for a dropped update; `attempts` counts the tries it took.
  void complete_step(bool applied, std::int64_t attempts = 1);

  /// The same, and chains the step's mark: the sum of sample_mark() over the samples that all ranks really read.
  void complete_step(bool applied, std::int64_t attempts, std::uint64_t step_mark);

  /// For a stream without a length that ends in the middle of next_step(): the step has only `num_samples` samples
  /// (perhaps none: then the stream starts again with it), and the next epoch begins after it.
  void stream_ended(std::int64_t num_samples);

  /// The sample ids at the positions [first, first + ids.size()) of an epoch's order.
  void sample_ids(std::int64_t epoch, std::int64_t first, std::span<std::int64_t> ids) const;

  /// Tells a schedule that follows a metric (reduce-on-plateau) the metric's newest value; others ignore it.
  void observe_metric(double value);

  /// Adds the groups "plan", "progress", "schedule", "sampler" and "coverage" to `tree`, and what depends on today's
  /// ranks to "provenance".
  void store(AttributeTree& tree) const;

 private:
  explicit TrainingPlan(PlanState state) : state_(std::move(state)) {}

  PlanState state_;
  std::int64_t stream_samples_ = 0;  ///< of the next step, when stream_ended() was told; else 0
  std::vector<PlanChange> changes_;
  std::vector<std::string> warnings_;
};

}  // namespace lockstep
