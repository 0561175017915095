#include "drivers/plan_flags.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "drivers/command_line.hpp"
#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

constexpr Range<double> kFromZero{0.0, std::numeric_limits<double>::max()};
constexpr Range<double> kUpToOne{0.0, 1.0};

/// The schedules of the command line: all but those made of a function.
std::vector<ScheduleKind> schedules() {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleKind kind : all_schedule_kinds()) {
    if (kind != ScheduleKind::custom) kinds.push_back(kind);
  }
  return kinds;
}

/// An option whose decimal text is kept as written: the plan computes with it exactly.
CLI::Option* add_decimal(CLI::App& app, const std::string& name, std::optional<std::string>& target,
                         const std::string& help) {
  const auto keep = [&target, name](const std::string& value) {
    Decimal(value, name);  // throws on what is none
    target = value;
  };
  return app.add_option_function<std::string>(name, keep, help)->type_name("X");
}

void add_batch_flags(CLI::App& app, PlanOptions& options) {
  const std::string group = "Batch";
  add_count(app, "--global-batch-size", options.global_batch_size, kPositive,
            "Samples in one optimizer step over all ranks. Default: micro-batch size x ranks x gradient accumulation "
            "steps of the first launch")
      ->group(group);
  add_count(app, "--micro-batch-size", options.micro_batch_size, kPositive,
            "Samples in one forward and backward pass on one rank. Default: what the other two give, else 8")
      ->group(group);
  add_count(app, "--gradient-accumulation-steps", options.gradient_accumulation_steps, kPositive,
            "Micro-batches that one rank runs in one step. Default: what the other two give, else 1")
      ->group(group);
}

void add_length_flags(CLI::App& app, PlanOptions& options) {
  const std::string group = "Length of the run (one of the first three)";
  add_decimal(app, "--num-train-epochs", options.num_train_epochs,
              "Passes over the data, an exact decimal: 6, 2.5. Default: 3 when none of the three is given")
      ->group(group);
  add_count(app, "--max-steps", options.max_steps, kPositive, "Optimizer steps; wins over epochs when both are given")
      ->group(group);
  add_count(app, "--train-samples", options.train_samples, kPositive, "Samples to consume, counted over all epochs")
      ->group(group);
  app.add_flag("--drop-last", options.drop_last,
               "Leave out the tail of an epoch that is shorter than a global batch. Default: it makes a short step")
      ->group(group);
}

void add_order_flags(CLI::App& app, PlanOptions& options) {
  const std::string group = "Order of the samples";
  add_count(app, "--seed", options.seed, kNotNegative,
            text("Number from 0 to 2^63 - 1 that decides the order of each epoch, initial weights and dropout. "
                 "Default: ",
                 options.seed))
      ->group(group);
  add_choice(app, "--shuffle", options.shuffle, shuffle_kind_from,
             {ShuffleKind::permutation, ShuffleKind::sequential},
             text("How an epoch's order is made. Default: ", name_of(options.shuffle)))
      ->group(group);
}

void add_rate_flags(CLI::App& app, ScheduleOptions& schedule) {
  const std::string group = "Learning rate";
  add_real(app, "--learning-rate", schedule.learning_rate, kFromZero,
           text("Base learning rate, which the schedule multiplies. Default: ", shortest(schedule.learning_rate)))
      ->group(group);
  add_choice(app, "--lr-scheduler-type", schedule.kind, schedule_kind_from, schedules(),
             text("Schedule. Default: ", name_of(schedule.kind)))
      ->group(group);
  add_count(app, "--warmup-steps", schedule.warmup_steps, kNotNegative,
            "Steps in which the rate rises to its base. Default: 0; at most one of the three warm-ups")
      ->group(group);
  add_decimal(app, "--warmup-ratio", schedule.warmup_ratio,
              "Warm-up as a fraction of all steps, an exact decimal rounded up to a step: 0.07 of 100 is 7")
      ->group(group);
  add_count(app, "--warmup-samples", schedule.warmup_samples, kNotNegative,
            "Warm-up in samples, rounded up to a step")
      ->group(group);
}

void add_shape_flags(CLI::App& app, ScheduleOptions& schedule) {
  const std::string group = "Shape of the schedule";
  add_real(app, "--num-cycles", schedule.num_cycles, kFromZero,
           "cosine, cosine-with-min-lr: waves until the end, default 0.5 (a half-wave down); cosine-with-restarts: "
           "restarts, a whole number, default 1")
      ->group(group);
  add_real(
      app, "--min-lr", schedule.min_lr, kFromZero,
      "cosine-with-min-lr (needed), warmup-stable-decay, one-cycle, reduce-on-plateau: the lowest rate. Default: 0; "
      "one-cycle: the base rate / 250000")
      ->group(group);
  add_real(app, "--lr-power", schedule.power, kFromZero,
           text("polynomial: exponent. Default: ", shortest(schedule.power)))
      ->group(group);
  add_real(app, "--lr-end", schedule.lr_end, kFromZero,
           text("polynomial: the rate at the end. Default: ", shortest(schedule.lr_end)))
      ->group(group);
  add_count(app, "--lr-timescale", schedule.timescale, kPositive,
            "inverse-sqrt: steps that set its speed. Default: the warm-up steps, or 10000 without warm-up")
      ->group(group);
  add_count(app, "--lr-decay-steps", schedule.decay_steps, kPositive,
            "warmup-stable-decay: steps of the decay, the last ones of the run. Default: a tenth of the run")
      ->group(group);
  add_count(app, "--lr-step-size", schedule.step_size, kPositive, "step (needed): steps between two drops")
      ->group(group);
  add_counts(app, "--lr-milestones", schedule.milestones, kPositive,
             "multi-step, piecewise-constant (needed): the steps from the start at which the rate changes, rising")
      ->group(group);
  add_reals(app, "--lr-factors", schedule.factors, kFromZero,
            "piecewise-constant (needed): the base rate's factor before, between and after the milestones")
      ->group(group);
  add_real(app, "--lr-gamma", schedule.gamma, kFromZero,
           text("step, multi-step, exponential: factor of one drop. Default: ", shortest(schedule.gamma)))
      ->group(group);
  add_real(app, "--plateau-factor", schedule.plateau_factor, kUpToOne,
           text("reduce-on-plateau: factor of one drop. Default: ", shortest(schedule.plateau_factor)))
      ->group(group);
  add_count(
      app, "--plateau-patience", schedule.plateau_patience, kNotNegative,
      text("reduce-on-plateau: evaluations without progress before a drop. Default: ", schedule.plateau_patience))
      ->group(group);
  add_real(app, "--plateau-threshold", schedule.plateau_threshold, kFromZero,
           text("reduce-on-plateau: relative gain that counts as progress. Default: ",
                shortest(schedule.plateau_threshold)))
      ->group(group);
  add_count(app, "--plateau-cooldown", schedule.plateau_cooldown, kNotNegative,
            text("reduce-on-plateau: evaluations to wait after a drop. Default: ", schedule.plateau_cooldown))
      ->group(group);
}

void add_resume_flags(CLI::App& app, PlanOptions& options) {
  const std::string group = "Resuming";
  add_choice(app, "--on-rank-change", options.on_rank_change, rank_change_policy_from,
             {RankChangePolicy::keep_global_batch, RankChangePolicy::keep_rank_batch},
             text("What a resume on another number of ranks keeps: the samples of a step (same steps and rates), or "
                  "the samples of a step on one rank. Default: ",
                  name_of(options.on_rank_change)))
      ->group(group);
  add_choice(app, "--lr-scaling", options.lr_scaling, lr_scaling_from,
             {LrScaling::none, LrScaling::linear, LrScaling::sqrt},
             text("How the base rate follows a changed global batch. Default: ", name_of(options.lr_scaling)))
      ->group(group);
  add_choice(
      app, "--schedule-from", options.schedule_from, schedule_from_from,
      {ScheduleFrom::must_agree, ScheduleFrom::checkpoint, ScheduleFrom::command_line},
      text("Whose schedule and end of the run count when a resume's differ from the checkpoint's; a difference "
           "is refused where they must agree. Default: ",
           name_of(options.schedule_from)))
      ->group(group);
}

/// A flag of a schedule's shape and the schedules that use it. (--min-lr is judged by the plan.)
struct ShapeFlag {
  const char* name;
  std::vector<ScheduleKind> users;
};

const std::vector<ShapeFlag>& shape_flags() {
  using enum ScheduleKind;
  static const std::vector<ShapeFlag> flags = {
      {"--num-cycles", {cosine, cosine_with_restarts, cosine_with_min_lr, warmup_stable_decay}},
      {"--lr-power", {polynomial}},
      {"--lr-end", {polynomial}},
      {"--lr-timescale", {inverse_sqrt}},
      {"--lr-decay-steps", {warmup_stable_decay}},
      {"--lr-step-size", {step}},
      {"--lr-milestones", {multi_step, piecewise_constant}},
      {"--lr-factors", {piecewise_constant}},
      {"--lr-gamma", {step, multi_step, exponential}},
      {"--plateau-factor", {reduce_on_plateau}},
      {"--plateau-patience", {reduce_on_plateau}},
      {"--plateau-threshold", {reduce_on_plateau}},
      {"--plateau-cooldown", {reduce_on_plateau}}};
  return flags;
}

}  // namespace

std::vector<std::string> unused_plan_flags(const CLI::App& app, const PlanOptions& options) {
  const ScheduleKind kind = options.schedule.kind;
  std::vector<std::string> sentences;
  for (const ShapeFlag& flag : shape_flags()) {
    if (app.count(flag.name) == 0) continue;
    if (std::find(flag.users.begin(), flag.users.end(), kind) != flag.users.end()) continue;
    std::string users;
    for (const ScheduleKind user : flag.users) users += text(users.empty() ? "" : ", ", name_of(user));
    sentences.push_back(
        text(flag.name, " is not used: the schedule is ", name_of(kind), " (it belongs to ", users, ")"));
  }
  return sentences;
}

void add_plan_flags(CLI::App& app, PlanOptions& options) {
  add_batch_flags(app, options);
  add_length_flags(app, options);
  add_order_flags(app, options);
  add_rate_flags(app, options.schedule);
  add_shape_flags(app, options.schedule);
  add_resume_flags(app, options);
}

}  // namespace lockstep
