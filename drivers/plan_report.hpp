#pragma once

#include <string>

#include "drivers/plan_request.hpp"

namespace lockstep {

/// An answer for people: one table of lengths, loads and steps with a column for each number of ranks, what a resume
/// changes, the learning rate at the milestones of each different schedule, and warnings.
std::string report_text(const PlanAnswer& answer);

}  // namespace lockstep
