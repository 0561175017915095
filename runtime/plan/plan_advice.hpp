#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/plan_state.hpp"

namespace lockstep {

/// What a colleague would say who looks at this plan before a node-hour is spent: ranks without work, one step an
/// epoch, a warm-up or milestones longer than the run, options that are not used. One sentence each.
std::vector<std::string> plan_advice(const PlanOptions& options, const PlanState& state);

}  // namespace lockstep
