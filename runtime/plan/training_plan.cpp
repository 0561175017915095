#include "runtime/plan/training_plan.hpp"

#include <cassert>
#include <utility>

#include "runtime/plan/exact.hpp"
#include "runtime/plan/plan_advice.hpp"
#include "runtime/plan/resume_rules.hpp"
#include "runtime/plan/sampler.hpp"

namespace lockstep {
namespace {

void append(std::vector<std::string>& to, std::vector<std::string> more) {
  for (std::string& sentence : more) to.push_back(std::move(sentence));
}

}  // namespace

TrainingPlan TrainingPlan::fresh(const PlanOptions& options, const DataShape& data, int num_ranks) {
  ResolvedBatch batch = fresh_batch(options, data, num_ranks);
  PlanState state;
  state.shuffle = options.shuffle;
  state.seed = checked_seed(options.seed);
  state.batch = std::move(batch.plan);
  state.origin = batch.origin;
  state.end = resolve_run_end(options, state.batch);
  state.schedule = make_schedule(options.schedule, state.batch, state.end);
  state.position = SchedulePosition::start(state.schedule.total_steps());
  const double rate = options.schedule.learning_rate;
  state.base_rate = {rate, rate, state.batch.global_batch_size};
  state.coverage.begin_segment(state.progress, state.batch);
  TrainingPlan plan(std::move(state));
  plan.warnings_ = plan_advice(options, plan.state_);
  append(plan.warnings_, std::move(batch.remarks));
  return plan;
}

TrainingPlan TrainingPlan::resumed(const PlanOptions& options, const DataShape& data, int num_ranks,
                                   const AttributeTree& stored) {
  ResumedState resumed = resume_state(options, data, num_ranks, stored);
  TrainingPlan plan(std::move(resumed.state));
  plan.changes_ = std::move(resumed.changes);
  plan.warnings_ = std::move(resumed.remarks);
  append(plan.warnings_, plan_advice(options, plan.state_));
  return plan;
}

TrainingPlan TrainingPlan::as_stored(const AttributeTree& stored) {
  return TrainingPlan(plan_state_from(stored, nullptr));
}

std::int64_t TrainingPlan::total_steps() const { return state_.progress.steps_taken + steps_left(); }

std::int64_t TrainingPlan::steps_left() const { return lockstep::steps_left(state_); }

std::int64_t TrainingPlan::warmup_steps() const { return state_.schedule.warmup_steps(); }

double TrainingPlan::epochs_done() const {
  const double whole = static_cast<double>(state_.progress.epoch);
  if (!state_.batch.has_length()) return whole;
  return whole +
         static_cast<double>(state_.progress.sample_in_epoch) / static_cast<double>(state_.batch.used_samples());
}

bool TrainingPlan::finished() const { return steps_left() == 0; }

StepPlan TrainingPlan::next_step() const {
  assert(!finished());
  const Progress& progress = state_.progress;
  StepPlan step;
  step.step = progress.steps_taken;
  step.epoch = progress.epoch;
  step.first_sample = progress.sample_in_epoch;
  step.num_samples = stream_samples_ > 0 ? stream_samples_ : samples_of_next_step(state_.end, state_.batch, progress);
  step.num_micro_batches = state_.batch.num_micro_batches_at(step.first_sample, step.num_samples);
  step.position = state_.position.position(progress);
  step.learning_rate = learning_rate(state_);
  return step;
}

std::optional<StepPlan> TrainingPlan::step_after_next() const {
  TrainingPlan ahead(state_);
  ahead.stream_samples_ = stream_samples_;
  ahead.complete_step(/*applied=*/true);
  return ahead.finished() ? std::nullopt : std::optional(ahead.next_step());
}

void TrainingPlan::complete_step(bool applied, std::int64_t attempts) {
  assert(!finished() && attempts >= 1);
  Progress& progress = state_.progress;
  const StepPlan step = next_step();
  state_.coverage.add_step(step.epoch, step.first_sample, step.num_samples);
  progress.sample_in_epoch += step.num_samples;
  progress.consumed_samples += step.num_samples;
  progress.steps_taken += 1;
  progress.steps_applied += applied ? 1 : 0;
  progress.steps_skipped += applied ? 0 : 1;
  progress.attempts += attempts;
  pass_over_tail(state_.batch, progress);
  if (stream_samples_ > 0) {
    ++progress.epoch;
    progress.sample_in_epoch = 0;
    stream_samples_ = 0;
  }
}

void TrainingPlan::complete_step(bool applied, std::int64_t attempts, std::uint64_t step_mark) {
  complete_step(applied, attempts);
  state_.coverage.chain(step_mark);
}

void TrainingPlan::stream_ended(std::int64_t num_samples) {
  Progress& progress = state_.progress;
  assert(!state_.batch.has_length() && !finished());
  if (num_samples > 0) {
    stream_samples_ = num_samples;
    return;
  }
  if (progress.sample_in_epoch == 0) {
    throw Error(ErrorKind::do_not_requeue, text("the stream of training samples is empty in epoch ", progress.epoch,
                                                " (no sample came before its end): check the data"));
  }
  ++progress.epoch;
  progress.sample_in_epoch = 0;
}

void TrainingPlan::sample_ids(std::int64_t epoch, std::int64_t first, std::span<std::int64_t> ids) const {
  fill_sample_ids(state_.batch, state_.shuffle, state_.seed, epoch, first, ids);
}

void TrainingPlan::observe_metric(double value) {
  if (state_.schedule.options().kind != ScheduleKind::reduce_on_plateau) return;
  state_.plateau.observe(value, state_.schedule.options());
}

void TrainingPlan::store(AttributeTree& tree) const { lockstep::store(state_, tree); }

}  // namespace lockstep
