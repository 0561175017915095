#include "runtime/plan/schedule_position.hpp"

namespace lockstep {

SchedulePosition SchedulePosition::start(std::int64_t total_steps) {
  SchedulePosition position;
  position.total = static_cast<double>(total_steps);
  position.left_at_switch = total_steps;
  return position;
}

double SchedulePosition::per_step() const {
  if (left_at_switch == 0) return 0.0;
  return (total - lag_at_switch - at_switch) / static_cast<double>(left_at_switch);
}

double SchedulePosition::position(const Progress& progress) const {
  const double way = total - lag_at_switch - at_switch;
  const double left = static_cast<double>(left_at_switch);
  const double applied = static_cast<double>(progress.steps_applied - applied_at_switch);
  if (way == left) return at_switch + applied;  // one by one, exactly
  return left_at_switch == 0 ? at_switch : at_switch + applied * way / left;
}

double SchedulePosition::lag(const Progress& progress) const {
  return lag_at_switch + static_cast<double>(progress.steps_skipped - skipped_at_switch) * per_step();
}

SchedulePosition SchedulePosition::switched(const Progress& progress, std::int64_t steps_left) const {
  SchedulePosition next;
  next.total = total;
  next.at_switch = position(progress);
  next.lag_at_switch = lag(progress);
  next.left_at_switch = steps_left;
  next.applied_at_switch = progress.steps_applied;
  next.skipped_at_switch = progress.steps_skipped;
  return next;
}

SchedulePosition SchedulePosition::entered(const Progress& progress, std::int64_t total_steps, double entry,
                                           std::int64_t steps_left) {
  SchedulePosition next;
  next.total = static_cast<double>(total_steps);
  next.at_switch = entry;
  next.left_at_switch = steps_left;
  next.applied_at_switch = progress.steps_applied;
  next.skipped_at_switch = progress.steps_skipped;
  return next;
}

void SchedulePosition::store(AttributeGroup& group) const {
  group["position_at_switch"] = at_switch;
  group["lag_at_switch"] = lag_at_switch;
  group["steps_left_at_switch"] = left_at_switch;
  group["steps_applied_at_switch"] = applied_at_switch;
  group["steps_skipped_at_switch"] = skipped_at_switch;
}

SchedulePosition SchedulePosition::from(const AttributeTree& tree) {
  SchedulePosition position;
  position.total = static_cast<double>(attribute<std::int64_t>(tree, "schedule", "total_steps"));
  position.at_switch = attribute<double>(tree, "schedule", "position_at_switch");
  position.lag_at_switch = attribute<double>(tree, "schedule", "lag_at_switch");
  position.left_at_switch = attribute<std::int64_t>(tree, "schedule", "steps_left_at_switch");
  position.applied_at_switch = attribute<std::int64_t>(tree, "schedule", "steps_applied_at_switch");
  position.skipped_at_switch = attribute<std::int64_t>(tree, "schedule", "steps_skipped_at_switch");
  return position;
}

}  // namespace lockstep
