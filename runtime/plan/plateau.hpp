#pragma once

#include <cstdint>
#include <limits>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// reduce-on-plateau's memory: the factor by which the rate has been reduced so far, and what it takes to reduce it
/// again. PyTorch's ReduceLROnPlateau with a relative threshold, for a metric that should fall.
struct PlateauTracker {
  double factor = 1.0;
  double best = std::numeric_limits<double>::infinity();
  std::int64_t num_bad = 0;        ///< observations in a row that were no improvement
  std::int64_t cooldown_left = 0;  ///< observations that do not count after a reduction

  /// The metric's newest value; one that is not a number is no improvement.
  void observe(double metric, const ScheduleOptions& options);

  void store(AttributeGroup& group) const;
  static PlateauTracker from(const AttributeTree& tree);  ///< reads the group "schedule"; throws Error
};

}  // namespace lockstep
