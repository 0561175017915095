#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/progress.hpp"

namespace lockstep {

enum class RunEndKind { epochs, samples, steps };

/// Where a run ends. Runs given in epochs or samples end at a point of the global order, fixed at the launch,
/// whatever the batch becomes; runs given in steps end after that many steps.
struct RunEnd {
  RunEndKind kind = RunEndKind::epochs;
  std::string requested;   ///< the user's number as written
  std::int64_t steps = 0;  ///< kind == steps
  std::int64_t epoch = 0;  ///< otherwise: the run ends in front of this sample of this epoch's order
  std::int64_t sample = 0;

  bool is_point() const { return kind != RunEndKind::steps; }

  /// "--num-train-epochs 6"
  std::string description() const;

  /// The same request, by value (6 equals 6.0).
  bool same_request(const RunEnd& other) const;
};

/// The end that the options ask for, as of progress `from` (a fresh run: the default). Steps win over epochs; three
/// epochs when nothing is asked. Throws Error(usage) when the request contradicts itself or leaves no step.
RunEnd resolve_run_end(const PlanOptions& options, const BatchPlan& batch, const Progress& from = {});

/// Steps from `progress` to the end: the sum, over the epochs still to run, of the steps up to the end.
std::int64_t steps_left(const RunEnd& end, const BatchPlan& batch, const Progress& progress);

/// Samples that those steps use. Needs an end that is a point.
std::int64_t samples_left(const RunEnd& end, const BatchPlan& batch, const Progress& progress);

/// Samples of the step at `progress`: samples_of_step(), but never past the end of the run (with the exception of
/// data that shards itself, whose steps are always whole).
std::int64_t samples_of_next_step(const RunEnd& end, const BatchPlan& batch, const Progress& progress);

}  // namespace lockstep
