#pragma once

#include <cstdint>

#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// How far a run is. Counted in samples of the global order, so it never depends on the ranks.
struct Progress {
  std::int64_t epoch = 0;             ///< the epoch of the next step
  std::int64_t sample_in_epoch = 0;   ///< the position of the next step in that epoch's order
  std::int64_t consumed_samples = 0;  ///< samples whose step is over, applied or skipped
  std::int64_t steps_taken = 0;       ///< applied + skipped
  std::int64_t steps_applied = 0;     ///< optimizer updates made; the scheduler epoch (`last_epoch`)
  std::int64_t steps_skipped = 0;     ///< steps dropped because their gradients were not finite
  std::int64_t attempts = 0;          ///< forward and backward passes of whole steps, retries included

  friend bool operator==(const Progress&, const Progress&) = default;
};

AttributeGroup to_attributes(const Progress& progress);
Progress progress_from(const AttributeTree& tree);  ///< reads the group "progress"; throws Error

}  // namespace lockstep
