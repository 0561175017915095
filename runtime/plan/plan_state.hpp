#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/batch_options.hpp"
#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/coverage.hpp"
#include "runtime/plan/lr_schedule.hpp"
#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/plateau.hpp"
#include "runtime/plan/progress.hpp"
#include "runtime/plan/run_end.hpp"
#include "runtime/plan/schedule_position.hpp"

namespace lockstep {

/// The base rate and what it follows: reference_rate x scale(G / reference_batch), so that a chain of changes does
/// not drift. Without scaling it is the rate that the user asked for.
struct BaseRate {
  double rate = 0.0;  ///< today's
  double reference_rate = 0.0;
  std::int64_t reference_batch = 0;

  /// The base rate under another global batch.
  BaseRate followed(LrScaling scaling, std::int64_t global_batch_size) const;
};

/// Everything a run's accounting consists of: what TrainingPlan keeps, what a checkpoint stores, and what the rules
/// of resuming turn from old into new.
struct PlanState {
  ShuffleKind shuffle = ShuffleKind::permutation;
  std::uint64_t seed = 0;
  BatchPlan batch;
  BatchOrigin origin;
  RunEnd end;
  LrSchedule schedule{{}, 0, 0};
  BaseRate base_rate;
  SchedulePosition position;
  PlateauTracker plateau;
  Progress progress;
  Coverage coverage;
};

std::int64_t steps_left(const PlanState& state);

/// The rate at the progress of `state`: of the next step, or of a step after the last one.
double learning_rate(const PlanState& state);

/// The first ids of the next batch, at most eight: what a resume compares. Empty when nothing is left.
std::vector<std::int64_t> next_sample_ids(const PlanState& state);

/// Moves to the next epoch when no step is left in this one (its end, or a tail that drop-last passes over).
void pass_over_tail(const BatchPlan& batch, Progress& progress);

/// Adds the groups "plan", "progress", "schedule", "sampler" and "coverage".
void store(const PlanState& state, AttributeTree& tree);

/// Reads them back; `custom` is today's function of a custom schedule. Throws Error when the groups are damaged.
PlanState plan_state_from(const AttributeTree& tree, const std::function<double(double, double)>& custom);

/// Recompute the next rate and the first sample ids that were stored beside `state`. Throw Error with both values
/// when they differ: then this program would not go on with the run that was saved.
void verify_next_rate(const PlanState& state, const AttributeTree& tree);
void verify_next_ids(const PlanState& state, const AttributeTree& tree);

}  // namespace lockstep
