#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// Adds the options that decide a run's plan to `app`, in help groups: batch, length, order of samples, learning
/// rate, resuming. This is their one definition: what a training program takes, the planning program explains.
///
/// Parsing fills `options`, which must outlive the parse and holds the defaults before. Values are checked one by
/// one here (spelling, range); what they mean together is checked by TrainingPlan. All can stand in a configuration
/// file under their long names. Schedules made of a function of one's own are for users of the library alone.
void add_plan_flags(CLI::App& app, PlanOptions& options);

/// A sentence for each option of a schedule's shape that was given to `app` and that the chosen schedule does not
/// use: nobody should believe that it does something.
std::vector<std::string> unused_plan_flags(const CLI::App& app, const PlanOptions& options);

}  // namespace lockstep
