#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/plan_change.hpp"
#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// Adds the options to a checkpoint's group "schedule". A custom function has only its name there.
void store_schedule_options(const ScheduleOptions& options, AttributeGroup& group);

/// Reads them back; `custom` is the function that a custom schedule has today. Throws Error.
ScheduleOptions schedule_options_from(const AttributeTree& tree, const std::function<double(double, double)>& custom);

/// Every option that differs, with both values as a command line would spell them. Custom functions cannot be
/// compared.
std::vector<PlanChange> differences(const ScheduleOptions& before, const ScheduleOptions& after);

/// The warm-up in steps of a run of `total_steps` steps: as given, ceil(ratio x total) in decimal, or the steps that
/// take the warm-up's samples. 0 for a schedule without one. Throws Error(usage) when two of the three are given
/// (one that is zero does not count).
std::int64_t resolve_warmup(const ScheduleOptions& options, const BatchPlan& batch, std::int64_t total_steps);

}  // namespace lockstep
