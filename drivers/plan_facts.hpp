#pragma once

#include <cstdint>
#include <optional>

#include "runtime/plan/training_plan.hpp"

namespace lockstep {

/// The smallest and the largest of the ranks' numbers.
struct Extent {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

/// What one epoch asks of the ranks under a plan.
struct EpochLoad {
  Extent samples;            ///< of one rank
  Extent micro_batches;      ///< of one rank
  double utilization = 1.0;  ///< micro-batches / (ranks x those of the busiest rank), step by step
};

/// Shares out an epoch's full steps and its last, shorter one. Empty for a stream, which has no epochs.
std::optional<EpochLoad> epoch_load(const BatchPlan& batch);

}  // namespace lockstep
