#include "runtime/plan/resume_rules.hpp"

#include <limits>
#include <utility>

#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/plan/schedule_options.hpp"

namespace lockstep {
namespace {

[[noreturn]] void refuse_fixed(std::string_view what, const std::string& before, const std::string& after) {
  throw Error(ErrorKind::usage, text(what, " is ", after, ", and the checkpoint was made with ", before,
                                     " (a run cannot change it and still use every sample once): resume with ",
                                     before, ", or start anew from the weights with --finetune-from"));
}

std::string flag(bool value) { return value ? "on" : "off"; }

void check_fixed(const PlanOptions& options, const PlanState& before) {
  if (options.seed != before.seed) refuse_fixed("--seed", text(before.seed), text(options.seed));
  if (options.shuffle != before.shuffle) {
    refuse_fixed("the kind of shuffle", name_of(before.shuffle), name_of(options.shuffle));
  }
  if (options.drop_last != before.batch.drop_last) {
    refuse_fixed("--drop-last", flag(before.batch.drop_last), flag(options.drop_last));
  }
}

std::string data_text(const BatchPlan& batch) {
  if (!batch.has_length()) return "a stream without a length";
  std::string all = text(batch.num_samples, " samples");
  if (batch.is_sharded()) all += text(" that shard themselves over ", batch.num_ranks, " ranks");
  return all;
}

bool same_data(const BatchPlan& a, const BatchPlan& b) {
  return a.num_samples == b.num_samples && a.samples_of_rank == b.samples_of_rank;
}

void check_data(const PlanState& before, const BatchPlan& after) {
  const Progress& progress = before.progress;
  if (progress.sample_in_epoch == 0) return;
  if (!same_data(before.batch, after)) {
    throw Error(ErrorKind::usage,
                text("the training data are ", data_text(after), ", and the checkpoint was made with ",
                     data_text(before.batch), " and stands in the middle of epoch ", progress.epoch, " (after ",
                     progress.sample_in_epoch,
                     " of its samples, so the rest of the epoch is not defined): resume with "
                     "the same data, or start anew from the weights with --finetune-from"));
  }
  if (after.is_sharded() && after.global_batch_size != before.batch.global_batch_size) {
    throw Error(ErrorKind::usage,
                text("the global batch would change from ", before.batch.global_batch_size, " to ",
                     after.global_batch_size, " in the middle of epoch ", progress.epoch,
                     ", while each rank has its own data (its steps could not be continued): resume with ",
                     before.batch.global_batch_size, ", or from the end of an epoch"));
  }
}

/// All options of the schedule and the end of the run that differ, with both values.
std::vector<PlanChange> asked_changes(const PlanState& before, const PlanOptions& options, const RunEnd& end) {
  std::vector<PlanChange> changes = differences(before.schedule.options(), options.schedule);
  if (!before.end.same_request(end)) {
    changes.push_back({"end", before.end.description(), end.description()});
  }
  return changes;
}

std::string listed(const std::vector<PlanChange>& changes) {
  std::string all;
  for (const PlanChange& change : changes) {
    all += text(all.empty() ? "" : "; ", change.name, ": ", change.before, " in the checkpoint, ", change.after,
                " on the command line");
  }
  return all;
}

/// Enters the schedule of the command line at the same fraction of samples.
void enter_new_schedule(const PlanOptions& options, const RunEnd& end, PlanState& state) {
  const std::int64_t left = steps_left(end, state.batch, state.progress);
  const bool is_before = end.is_point()
                             ? end.epoch < state.progress.epoch ||
                                   (end.epoch == state.progress.epoch && end.sample < state.progress.sample_in_epoch)
                             : end.steps < state.progress.steps_taken;
  if (is_before) {
    throw Error(ErrorKind::usage, text("the run would end at ", end.description(),
                                       ", and the checkpoint is past that (epoch ", state.progress.epoch, ", sample ",
                                       state.progress.sample_in_epoch, ", ", state.progress.steps_taken, " steps, ",
                                       state.progress.consumed_samples, " samples): ask for a later end"));
  }
  state.end = end;
  state.schedule = make_schedule(options.schedule, state.batch, end);
  const double total = static_cast<double>(state.schedule.total_steps());
  const Progress& progress = state.progress;
  double entry = static_cast<double>(progress.steps_taken);
  if (end.is_point()) {
    const double consumed = static_cast<double>(progress.consumed_samples);
    entry = total * consumed / (consumed + static_cast<double>(samples_left(end, state.batch, progress)));
  }
  state.position = SchedulePosition::entered(progress, state.schedule.total_steps(), entry, left);
  const double rate = options.schedule.learning_rate;
  state.base_rate = {rate, rate, state.batch.global_batch_size};
}

/// A change of plan under the same schedule.
void switch_plan(const PlanOptions& options, const PlanState& before, PlanState& state) {
  if (state.end.is_point()) {
    if (!same_data(before.batch, state.batch)) {
      PlanOptions request;
      if (state.end.kind == RunEndKind::epochs) request.num_train_epochs = state.end.requested;
      if (state.end.kind == RunEndKind::samples) request.train_samples = std::stoll(state.end.requested);
      state.end = resolve_run_end(request, state.batch, state.progress);
    }
    if (steps_left(state) == 0 && steps_left(before) > 0) {
      throw Error(ErrorKind::usage,
                  text("a global batch of ", state.batch.global_batch_size, " on ", state.batch.num_ranks,
                       " ranks would leave no step, although ", steps_left(before), " steps (",
                       samples_left(before.end, before.batch, before.progress), " samples) are left with ",
                       before.batch.global_batch_size,
                       ": resume with --on-rank-change keep-global-batch, or with a smaller global batch"));
    }
    state.position = before.position.switched(state.progress, steps_left(state));
  }
  if (state.batch.global_batch_size != before.batch.global_batch_size) {
    state.base_rate = before.base_rate.followed(options.lr_scaling, state.batch.global_batch_size);
  }
}

std::vector<PlanChange> numbers_of(const PlanState& before, const PlanState& after) {
  std::vector<PlanChange> changes;
  const auto add = [&](const char* name, auto number) { changes.push_back({name, number(before), number(after)}); };
  add("ranks", [](const PlanState& s) { return text(s.batch.num_ranks); });
  add("samples", [](const PlanState& s) { return text(s.batch.num_samples); });
  add("global_batch_size", [](const PlanState& s) { return text(s.batch.global_batch_size); });
  add("micro_batch_size", [](const PlanState& s) { return text(s.batch.micro_batch_size); });
  add("accumulation_steps", [](const PlanState& s) { return text(s.batch.accumulation_steps()); });
  add("steps_per_epoch", [](const PlanState& s) { return text(s.batch.steps_per_epoch()); });
  add("epoch", [](const PlanState& s) { return text(s.progress.epoch); });
  add("sample_in_epoch", [](const PlanState& s) { return text(s.progress.sample_in_epoch); });
  add("steps_left", [](const PlanState& s) { return text(steps_left(s)); });
  add("total_steps", [](const PlanState& s) { return text(s.progress.steps_taken + steps_left(s)); });
  add("end", [](const PlanState& s) { return s.end.description(); });
  add("schedule_steps", [](const PlanState& s) { return text(s.schedule.total_steps()); });
  add("warmup_steps", [](const PlanState& s) { return text(s.schedule.warmup_steps()); });
  add("position", [](const PlanState& s) { return shortest(s.position.position(s.progress)); });
  add("position_per_step", [](const PlanState& s) { return shortest(s.position.per_step()); });
  add("base_learning_rate", [](const PlanState& s) { return shortest(s.base_rate.rate); });
  add("next_learning_rate", [](const PlanState& s) { return shortest(learning_rate(s)); });
  return changes;
}

}  // namespace

std::uint64_t checked_seed(std::uint64_t seed) {
  if (seed > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw Error(ErrorKind::usage,
                text("--seed is ", seed, " (it is stored as a signed number): give one below 2^63"));
  }
  return seed;
}

LrSchedule make_schedule(const ScheduleOptions& options, const BatchPlan& batch, const RunEnd& end) {
  const std::int64_t total = steps_left(end, batch, Progress{});
  if (total == 0) {
    throw Error(ErrorKind::usage,
                text(end.description(), " leaves no step: ", batch.num_samples, " samples in global batches of ",
                     batch.global_batch_size, batch.drop_last ? " with --drop-last" : "", ": ask for more"));
  }
  const std::int64_t warmup = resolve_warmup(options, batch, total);
  check_schedule(options, total, warmup);
  return LrSchedule(options, total, warmup);
}

ResumedState resume_state(const PlanOptions& options, const DataShape& data, int num_ranks,
                          const AttributeTree& stored) {
  const PlanState before = plan_state_from(stored, options.schedule.custom);
  const bool is_custom = before.schedule.options().kind == ScheduleKind::custom;
  if (is_custom && !options.schedule.custom && options.schedule_from != ScheduleFrom::command_line) {
    throw Error(ErrorKind::usage,
                "the checkpoint's schedule is a function of the program that wrote it, and this program gives none: "
                "set ScheduleOptions::custom, or take another schedule with --schedule-from command-line");
  }
  // A function that --schedule-from command-line may have replaced cannot tell the stored rate.
  if (!is_custom || options.schedule_from != ScheduleFrom::command_line) verify_next_rate(before, stored);
  verify_next_ids(before, stored);
  check_fixed(options, before);

  ResumedState result;
  PlanState& state = result.state;
  state = before;
  const std::vector<PlanChange> asked =
      asked_changes(before, options, resolve_run_end(options, before.batch, before.progress));
  const bool takes_command_line = !asked.empty() && options.schedule_from == ScheduleFrom::command_line;
  if (!asked.empty() && options.schedule_from == ScheduleFrom::must_agree) {
    throw Error(ErrorKind::usage,
                text("the schedule or the end of the run differs from the checkpoint's (", listed(asked),
                     "): give the checkpoint's values, or choose with --schedule-from checkpoint or --schedule-from "
                     "command-line"));
  }
  if (!asked.empty() && !takes_command_line) {
    result.remarks.push_back(
        text("the checkpoint's schedule counts, the command line's is ignored (", listed(asked), ")"));
  }
  if (steps_left(before) == 0 && !takes_command_line) {  // finished: there is nothing to deal to today's ranks
    result.changes = numbers_of(before, state);
    return result;
  }

  ResolvedBatch batch = resumed_batch(options, data, num_ranks, before.batch, before.origin);
  state.batch = std::move(batch.plan);
  state.origin = batch.origin;
  for (std::string& remark : batch.remarks) result.remarks.push_back(std::move(remark));
  check_data(before, state.batch);
  check_batch(state.batch);
  pass_over_tail(state.batch, state.progress);
  if (state.progress.epoch != before.progress.epoch) {
    result.remarks.push_back(text("--drop-last passes over the last ",
                                  before.batch.num_samples - before.progress.sample_in_epoch, " samples of epoch ",
                                  before.progress.epoch, ": they are fewer than a global batch of ",
                                  state.batch.global_batch_size));
  }

  const bool plan_changed =
      state.batch.global_batch_size != before.batch.global_batch_size || !same_data(before.batch, state.batch);
  if (takes_command_line) {
    enter_new_schedule(options, resolve_run_end(options, state.batch, state.progress), state);
    result.remarks.push_back(text("the schedule of the command line replaces the checkpoint's (", listed(asked),
                                  "): it is entered at position ", shortest(state.position.at_switch), " of ",
                                  state.schedule.total_steps(), ", the next learning rate jumps from ",
                                  shortest(learning_rate(before)), " to ", shortest(learning_rate(state))));
  } else if (plan_changed) {
    switch_plan(options, before, state);
  }
  if (state.batch.global_batch_size != before.batch.global_batch_size) {
    result.remarks.push_back(text("the global batch changes from ", before.batch.global_batch_size, " to ",
                                  state.batch.global_batch_size, ", the base learning rate from ",
                                  shortest(before.base_rate.rate), " to ", shortest(state.base_rate.rate),
                                  " (--lr-scaling ", name_of(options.lr_scaling), ")"));
  }
  if (plan_changed || takes_command_line) state.coverage.begin_segment(state.progress, state.batch);
  result.changes = numbers_of(before, state);
  for (const PlanChange& change : asked) {
    if (takes_command_line && change.name != "end") result.changes.push_back(change);
  }
  return result;
}

}  // namespace lockstep
