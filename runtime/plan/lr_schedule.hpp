#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// A learning rate schedule over [0, T0]: a pure function of the position, as PyTorch and the Hugging Face
/// schedulers compute it. Finite and non-negative for every position and every length, also for W0 >= T0.
///
/// The warm-up rises linearly from 0 over W0 steps (warmup-stable-decay: from its minimum); whatever decays starts
/// to decay when it ends. Two kinds differ: one-cycle has its own rise (over W0 steps, or 0.3 of the run when no
/// warm-up is given), and the milestones of multi-step and piecewise-constant count from the start of the run.
/// `constant` has no warm-up.
///
/// Defaults: cosine 0.5 waves (one half-cycle), cosine-with-restarts one cycle, inverse-sqrt a timescale of W0 or
/// 10,000, warmup-stable-decay a cosine decay over the last tenth of the run, one-cycle from rate / 25 down to
/// rate / 250,000 (or --min-lr). reduce-on-plateau is constant here: the reduction is PlateauTracker's.
class LrSchedule {
 public:
  /// No check of the options against each other: see check_schedule(). T0 >= 0, W0 >= 0.
  LrSchedule(ScheduleOptions options, std::int64_t total_steps, std::int64_t warmup_steps);

  /// The rate at position p, as a multiple of the base rate; p is clamped to [0, T0]. Not a number for a custom
  /// schedule whose function is not known (a stored one).
  double factor(double position) const;

  std::int64_t total_steps() const { return total_steps_; }
  std::int64_t warmup_steps() const { return warmup_steps_; }
  const ScheduleOptions& options() const { return options_; }

 private:
  double decayed(double position) const;
  double warmed_up(double position) const;
  double warmup_stable_decay(double position) const;
  double one_cycle(double position) const;
  std::int64_t decay_steps() const;  ///< of warmup-stable-decay
  double min_factor() const;         ///< min_lr as a multiple of the base rate

  ScheduleOptions options_;
  std::int64_t total_steps_;
  std::int64_t warmup_steps_;
};

/// Throws Error(usage), with the numbers, when the options lack what their kind needs, contradict each other, or
/// warm up for the whole run without saying so.
void check_schedule(const ScheduleOptions& options, std::int64_t total_steps, std::int64_t warmup_steps);

/// What a colleague would say about this schedule: options that are not used, milestones that are never reached,
/// a rate that is practically zero long before the run ends.
std::vector<std::string> schedule_advice(const LrSchedule& schedule);

}  // namespace lockstep
