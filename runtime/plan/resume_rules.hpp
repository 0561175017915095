#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/plan_change.hpp"
#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/plan_state.hpp"

namespace lockstep {

/// The schedule that the options define for a run of this batch up to this end, from its start. Throws Error(usage).
LrSchedule make_schedule(const ScheduleOptions& options, const BatchPlan& batch, const RunEnd& end);

/// The seed, when it can be stored as a signed number. Throws Error(usage) otherwise.
std::uint64_t checked_seed(std::uint64_t seed);

struct ResumedState {
  PlanState state;
  std::vector<PlanChange> changes;   ///< every number of the plan, old and new
  std::vector<std::string> remarks;  ///< what was decided, in sentences
};

/// The rules of resuming. What may change:
///
///   fixed      seed, kind of shuffle, drop-last; the data in the middle of an epoch
///   a switch   the data at an epoch's end; the global batch, when it is asked for anew or follows the ranks: the
///              schedule stays, the position moves on at another speed (runs given in steps: nothing moves)
///   printed    micro-batch and accumulation
///   agreed     schedule, rates, warm-up, end of the run: equal, or ScheduleOptions say whose count
///
/// First of all the stored next step is verified under the stored plan. Throws Error with both values.
ResumedState resume_state(const PlanOptions& options, const DataShape& data, int num_ranks,
                          const AttributeTree& stored);

}  // namespace lockstep
