#pragma once

#include <ostream>

#include "runtime/plan/training_plan.hpp"

namespace lockstep {

/// Writes the header of a schedule's table: step, epoch, consumed_samples, lr, samples, micro_batches, position,
/// ranks.
void write_csv_header(std::ostream& out);

/// Writes one line for each step that `plan` still has, as it comes when each is applied; memory does not grow with
/// their number. As in a run's metrics, `step` counts the steps taken and `consumed_samples` what they used, this one
/// included; epochs count from 0. Rates and positions are written with 17 digits, so they read back as the same
/// numbers. Throws Error when the stream fails.
void write_csv(TrainingPlan plan, std::ostream& out);

}  // namespace lockstep
