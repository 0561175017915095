#pragma once

#include <nlohmann/json_fwd.hpp>

#include "drivers/plan_request.hpp"

namespace lockstep {

/// An answer as one JSON object: the plan of the only, or first, number of ranks under its own names ("samples",
/// "global_batch_size", "steps_per_epoch", "total_steps", "warmup_steps", ...), and those of several under "plans".
/// With a checkpoint the names stand under "old" and "new" instead, and "changes" lists each number old and new.
/// "remarks" are sentences on the command line. What is not known of a stream is null.
nlohmann::ordered_json to_json(const PlanAnswer& answer);

}  // namespace lockstep
