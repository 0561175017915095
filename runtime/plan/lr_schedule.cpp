#include "runtime/plan/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <utility>

#include "runtime/plan/error.hpp"
#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

constexpr double pi = std::numbers::pi;

/// One half-cycle is 0.5 waves.
double cosine_wave(double progress, double num_waves) {
  return 0.5 * (1.0 + std::cos(pi * num_waves * 2.0 * progress));
}

/// From `from` to `to` along half a cosine.
double cosine_between(double from, double to, double part) {
  return to + (from - to) / 2.0 * (1.0 + std::cos(pi * part));
}

double at_least_one(std::int64_t steps) { return static_cast<double>(std::max<std::int64_t>(1, steps)); }

}  // namespace

LrSchedule::LrSchedule(ScheduleOptions options, std::int64_t total_steps, std::int64_t warmup_steps)
    : options_(std::move(options)), total_steps_(total_steps), warmup_steps_(warmup_steps) {}

double LrSchedule::factor(double position) const {
  const double p = std::clamp(position, 0.0, static_cast<double>(total_steps_));
  switch (options_.kind) {
    case ScheduleKind::constant:
      return 1.0;
    case ScheduleKind::custom:
      if (!options_.custom) return std::numeric_limits<double>::quiet_NaN();
      return options_.custom(p, static_cast<double>(total_steps_));
    case ScheduleKind::warmup_stable_decay:
      return warmup_stable_decay(p);
    case ScheduleKind::one_cycle:
      return one_cycle(p);
    default:
      return p < static_cast<double>(warmup_steps_) ? warmed_up(p) : decayed(p);
  }
}

double LrSchedule::warmed_up(double p) const { return p / at_least_one(warmup_steps_); }

double LrSchedule::min_factor() const {
  return options_.learning_rate > 0.0 ? options_.min_lr.value_or(0.0) / options_.learning_rate : 0.0;
}

double LrSchedule::decayed(double p) const {
  const double total = static_cast<double>(total_steps_);
  const double since_warmup = p - static_cast<double>(warmup_steps_);
  const double decay_steps = at_least_one(total_steps_ - warmup_steps_);
  const double progress = since_warmup / decay_steps;
  switch (options_.kind) {
    case ScheduleKind::linear:
      return std::max(0.0, (total - p) / decay_steps);
    case ScheduleKind::cosine:
      return std::max(0.0, cosine_wave(progress, options_.num_cycles.value_or(0.5)));
    case ScheduleKind::cosine_with_min_lr: {
      const double wave = cosine_wave(progress, options_.num_cycles.value_or(0.5));
      return std::max(0.0, wave * (1.0 - min_factor()) + min_factor());
    }
    case ScheduleKind::cosine_with_restarts: {
      if (progress >= 1.0) return 0.0;
      const double cycles = options_.num_cycles.value_or(1.0) * since_warmup / decay_steps;
      return std::max(0.0, cosine_wave(cycles - std::floor(cycles), 0.5));
    }
    case ScheduleKind::polynomial: {
      const double base = options_.learning_rate;
      if (base <= 0.0) return 0.0;
      if (p >= total) return options_.lr_end / base;
      const double decay = (base - options_.lr_end) * std::pow(1.0 - progress, options_.power) + options_.lr_end;
      return decay / base;
    }
    case ScheduleKind::inverse_sqrt: {
      const std::int64_t fallback = warmup_steps_ > 0 ? warmup_steps_ : 10000;
      const double timescale = static_cast<double>(options_.timescale.value_or(fallback));
      return 1.0 / std::sqrt((since_warmup + timescale) / timescale);
    }
    case ScheduleKind::step:
      return std::pow(options_.gamma, std::floor(since_warmup / at_least_one(options_.step_size.value_or(1))));
    case ScheduleKind::exponential:
      return std::pow(options_.gamma, since_warmup);
    case ScheduleKind::multi_step:
    case ScheduleKind::piecewise_constant: {
      const auto passed = std::count_if(options_.milestones.begin(), options_.milestones.end(),
                                        [p](std::int64_t milestone) { return static_cast<double>(milestone) <= p; });
      if (options_.kind == ScheduleKind::multi_step) return std::pow(options_.gamma, static_cast<double>(passed));
      return options_.factors[static_cast<std::size_t>(passed)];
    }
    default:
      return 1.0;
  }
}

double LrSchedule::warmup_stable_decay(double p) const {
  const auto lifted = [this](double factor) { return std::max(0.0, factor * (1.0 - min_factor()) + min_factor()); };
  const double warmup = static_cast<double>(warmup_steps_);
  if (p < warmup) return lifted(warmed_up(p));
  const double decay_start = std::max(warmup, static_cast<double>(total_steps_ - decay_steps()));
  if (p < decay_start) return 1.0;
  if (p >= static_cast<double>(total_steps_)) return min_factor();
  return lifted(cosine_wave((p - decay_start) / at_least_one(decay_steps()), options_.num_cycles.value_or(0.5)));
}

std::int64_t LrSchedule::decay_steps() const {
  const std::int64_t usual = std::min(ceil_div(total_steps_, 10), total_steps_ - warmup_steps_);
  return options_.decay_steps.value_or(std::max<std::int64_t>(0, usual));
}

double LrSchedule::one_cycle(double p) const {
  constexpr double start = 1.0 / 25.0;
  const double end = options_.min_lr ? min_factor() : start / 1e4;
  const double total = static_cast<double>(total_steps_);
  const double peak = (warmup_steps_ > 0 ? static_cast<double>(warmup_steps_) : 0.3 * total) - 1.0;
  const double last = total - 1.0;
  if (p <= peak) return peak > 0.0 ? cosine_between(start, 1.0, p / peak) : 1.0;
  if (last <= std::max(0.0, peak)) return end;
  return cosine_between(1.0, end, std::min(1.0, (p - peak) / (last - peak)));
}

void check_schedule(const ScheduleOptions& options, std::int64_t total_steps, std::int64_t warmup_steps) {
  const std::string kind = name_of(options.kind);
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::usage, message); };
  const auto number = [](double value) { return shortest(value); };
  const double rate = options.learning_rate;
  if (!std::isfinite(rate) || rate < 0.0) {
    refuse(
        text("--learning-rate is ", number(rate), " (it must be finite and not negative): give a rate such as 1e-3"));
  }
  if (options.min_lr && !(*options.min_lr >= 0.0 && *options.min_lr <= rate)) {
    refuse(text("--min-lr ", number(*options.min_lr), " does not lie between 0 and --learning-rate ", number(rate),
                " (a minimum cannot be above the start): lower it"));
  }
  if (options.num_cycles && !(std::isfinite(*options.num_cycles) && *options.num_cycles > 0.0)) {
    refuse(text("--num-cycles is ", number(*options.num_cycles), " (it must be positive): give a positive number"));
  }
  if (!std::isfinite(options.gamma) || options.gamma <= 0.0) {
    refuse(
        text("the decay factor gamma is ", number(options.gamma), " (it must be positive): give a positive number"));
  }
  switch (options.kind) {
    case ScheduleKind::cosine_with_min_lr:
      if (!options.min_lr) refuse(text("the schedule ", kind, " needs its minimum: give --min-lr"));
      break;
    case ScheduleKind::polynomial:
      if (!(options.lr_end >= 0.0 && (options.lr_end < rate || rate == 0.0))) {
        refuse(text("the polynomial schedule would end at ", number(options.lr_end),
                    ", which is not below --learning-rate ", number(rate), ": lower the end"));
      }
      if (!std::isfinite(options.power) || options.power < 0.0) {
        refuse(text("the polynomial schedule's power is ", number(options.power), ": give a number of at least 0"));
      }
      break;
    case ScheduleKind::inverse_sqrt:
      if (options.timescale && *options.timescale <= 0) {
        refuse(text("the timescale of ", kind, " is ", *options.timescale, ": give a positive number of steps"));
      }
      break;
    case ScheduleKind::warmup_stable_decay: {
      const std::int64_t decay_steps = options.decay_steps.value_or(0);
      if (decay_steps < 0 || (warmup_steps < total_steps && decay_steps > total_steps - warmup_steps)) {
        refuse(text("the schedule ", kind, " would warm up for ", warmup_steps, " and decay for ", decay_steps,
                    " steps, more than the ", total_steps, " steps of the run: shorten one of them"));
      }
      break;
    }
    case ScheduleKind::step:
      if (!options.step_size || *options.step_size <= 0) {
        refuse(text("the schedule ", kind, " needs a positive number of steps between its drops",
                    options.step_size ? text(", not ", *options.step_size) : "", ": give --lr-step-size"));
      }
      break;
    case ScheduleKind::multi_step:
    case ScheduleKind::piecewise_constant:
      if (options.milestones.empty() || options.milestones.front() < 0 ||
          std::adjacent_find(options.milestones.begin(), options.milestones.end(), std::greater_equal<>()) !=
              options.milestones.end()) {
        refuse(text("the schedule ", kind, " needs milestones that rise: give the steps at which the rate changes"));
      }
      if (options.kind == ScheduleKind::piecewise_constant &&
          options.factors.size() != options.milestones.size() + 1) {
        refuse(text("the schedule ", kind, " has ", options.milestones.size(), " milestones and ",
                    options.factors.size(), " factors (one factor more than milestones is needed): give ",
                    options.milestones.size() + 1, " factors"));
      }
      for (const double factor : options.factors) {
        if (!std::isfinite(factor) || factor < 0.0) {
          refuse(
              text("a factor of ", kind, " is ", number(factor), " (it must be finite and not negative): change it"));
        }
      }
      break;
    case ScheduleKind::reduce_on_plateau:
      if (!(options.plateau_factor > 0.0 && options.plateau_factor < 1.0) || options.plateau_patience < 0 ||
          options.plateau_cooldown < 0) {
        refuse(text("the schedule ", kind, " has the factor ", number(options.plateau_factor), ", patience ",
                    options.plateau_patience, " and cooldown ", options.plateau_cooldown,
                    " (the factor lies between 0 and 1, the others are at least 0): change them"));
      }
      break;
    case ScheduleKind::custom:
      if (!options.custom) refuse("the schedule is custom, but there is no function: set ScheduleOptions::custom");
      break;
    default:
      break;
  }
  const bool may_fill_the_run =
      options.kind == ScheduleKind::constant_with_warmup || options.kind == ScheduleKind::constant;
  if (warmup_steps >= total_steps && !may_fill_the_run) {
    refuse(text("the warm-up takes ", warmup_steps, " steps and the whole run has ", total_steps,
                " (it would end before the rate is reached): shorten the warm-up, lengthen the run, or say "
                "--lr-scheduler-type constant-with-warmup"));
  }
}

std::vector<std::string> schedule_advice(const LrSchedule& schedule) {
  const ScheduleOptions& options = schedule.options();
  const std::int64_t total = schedule.total_steps();
  std::vector<std::string> advice;
  if (schedule.warmup_steps() >= total && options.kind == ScheduleKind::constant_with_warmup) {
    advice.push_back(text("the warm-up of ", schedule.warmup_steps(), " steps is not over when the run ends after ",
                          total, " steps"));
  }
  const bool uses_milestones =
      options.kind == ScheduleKind::multi_step || options.kind == ScheduleKind::piecewise_constant;
  if (uses_milestones && options.milestones.back() >= total) {
    advice.push_back(text("the schedule goes on after the run: its last milestone is step ",
                          options.milestones.back(), ", the run has ", total, " steps"));
  }
  if (options.kind == ScheduleKind::step && *options.step_size >= total - schedule.warmup_steps()) {
    advice.push_back(text("the rate never drops: the first drop would come ", *options.step_size,
                          " steps after the warm-up, the run has ", total, " steps"));
  }
  const bool uses_min_lr = options.kind == ScheduleKind::cosine_with_min_lr ||
                           options.kind == ScheduleKind::warmup_stable_decay ||
                           options.kind == ScheduleKind::one_cycle || options.kind == ScheduleKind::reduce_on_plateau;
  if (options.min_lr && !uses_min_lr) {
    advice.push_back(text("--min-lr ", shortest(*options.min_lr), " is not used: the schedule ",
                          name_of(options.kind), " has no minimum (cosine-with-min-lr has)"));
  }
  const double peak = schedule.factor(static_cast<double>(std::min(schedule.warmup_steps(), total)));
  if (total >= 10 && peak > 0.0 && schedule.factor(0.75 * static_cast<double>(total)) < 1e-6 * peak) {
    advice.push_back(text("the schedule ends long before the run: after three quarters of the ", total,
                          " steps the rate is below a millionth of its peak"));
  }
  return advice;
}

}  // namespace lockstep
