#pragma once

#include <cstdint>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/progress.hpp"

namespace lockstep {

/// Where a run is on its schedule. The schedule stays as it was defined (T0 steps); a change of plan changes how fast
/// the position moves along it: from the switch on each applied step moves it by (T0 - p - lag) / steps left, so
/// there is no jump at the switch and the schedule ends at its end.
///
/// lag is what skipped steps held back. Everything is computed from the numbers stored at the last switch, never
/// summed up; without a switch the position is exactly the number of applied steps.
struct SchedulePosition {
  double total = 0.0;      ///< T0
  double at_switch = 0.0;  ///< p at the last switch; 0 at the launch
  double lag_at_switch = 0.0;
  std::int64_t left_at_switch = 0;
  std::int64_t applied_at_switch = 0;
  std::int64_t skipped_at_switch = 0;

  /// The start of a run of `total_steps` steps.
  static SchedulePosition start(std::int64_t total_steps);

  double position(const Progress& progress) const;
  double lag(const Progress& progress) const;

  /// How far one applied step moves the position.
  double per_step() const;

  /// The same schedule from here on, when `steps_left` steps are left under the new plan.
  SchedulePosition switched(const Progress& progress, std::int64_t steps_left) const;

  /// Another schedule of `total_steps` steps, entered at position `entry` with `steps_left` steps left.
  static SchedulePosition entered(const Progress& progress, std::int64_t total_steps, double entry,
                                  std::int64_t steps_left);

  void store(AttributeGroup& group) const;
  static SchedulePosition from(const AttributeTree& tree);  ///< reads the group "schedule"; throws Error
};

}  // namespace lockstep
