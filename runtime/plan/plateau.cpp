#include "runtime/plan/plateau.hpp"

#include <algorithm>

namespace lockstep {

void PlateauTracker::observe(double metric, const ScheduleOptions& options) {
  constexpr double smallest_change = 1e-8;  // of the rate, as PyTorch has it
  if (metric < best * (1.0 - options.plateau_threshold)) {
    best = metric;
    num_bad = 0;
  } else {
    ++num_bad;
  }
  if (cooldown_left > 0) {
    --cooldown_left;
    num_bad = 0;
  }
  if (num_bad <= options.plateau_patience) return;
  cooldown_left = options.plateau_cooldown;
  num_bad = 0;
  const double base = options.learning_rate;
  const double floor = base > 0.0 ? options.min_lr.value_or(0.0) / base : 0.0;
  const double reduced = std::max(factor * options.plateau_factor, floor);
  if ((factor - reduced) * base > smallest_change) factor = reduced;
}

void PlateauTracker::store(AttributeGroup& group) const {
  group["plateau_rate_factor"] = factor;
  group["plateau_best"] = best;
  group["plateau_num_bad"] = num_bad;
  group["plateau_cooldown_left"] = cooldown_left;
}

PlateauTracker PlateauTracker::from(const AttributeTree& tree) {
  PlateauTracker tracker;
  tracker.factor = attribute<double>(tree, "schedule", "plateau_rate_factor");
  tracker.best = attribute<double>(tree, "schedule", "plateau_best");
  tracker.num_bad = attribute<std::int64_t>(tree, "schedule", "plateau_num_bad");
  tracker.cooldown_left = attribute<std::int64_t>(tree, "schedule", "plateau_cooldown_left");
  return tracker;
}

}  // namespace lockstep
