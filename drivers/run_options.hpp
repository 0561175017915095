#pragma once

#include <vector>

#include "drivers/train_options.hpp"
#include "runtime/plan/plan_change.hpp"

namespace lockstep {

// The options that define a run, by their names and with the values that hold, given or not: for the checkpoint and
// for people. Not what belongs to one launch: ranks, machine, saves, logs. So they are the same on any number of
// ranks.

/// Data, model, loss, optimizer and precision; `model` is the resolved one.
AttributeGroup training_options(const TrainCommand& command, const ModelOptions& model);

/// The plan's as they were asked for; what they come to is in the checkpoint's groups "plan" and "schedule".
AttributeGroup plan_options(const PlanOptions& plan);

/// The training options of a run that goes on which differ from the stored ones. The plan tells its own changes, and
/// the precision is told with what else changes bits.
std::vector<PlanChange> changed_options(const AttributeTree& stored, const AttributeGroup& training);

}  // namespace lockstep
