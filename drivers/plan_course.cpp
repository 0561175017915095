#include "drivers/plan_course.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "drivers/plan_axis.hpp"

namespace lockstep {
namespace {

constexpr double kMaxEpochs = 12.0;  // that are milestones

}  // namespace

PlanCourse::PlanCourse(TrainingPlan plan)
    : plan_(std::move(plan)), num_steps_(plan_.steps_left()), state_(plan_.state()) {}

Progress PlanCourse::progress_after(std::int64_t num_applied) const {
  const BatchPlan& batch = plan_.batch();
  Progress progress = plan_.progress();
  progress.steps_taken += num_applied;
  progress.steps_applied += num_applied;
  if (!batch.has_length()) {
    progress.sample_in_epoch += num_applied * batch.global_batch_size;
    progress.consumed_samples += num_applied * batch.global_batch_size;
    return progress;
  }
  const std::int64_t begin = progress.sample_in_epoch;
  const std::int64_t steps_in_epoch = batch.steps_between(begin, batch.num_samples);
  if (num_applied < steps_in_epoch) {
    progress.sample_in_epoch = batch.is_sharded() ? batch.position_after(batch.steps_between(0, begin) + num_applied)
                                                  : begin + num_applied * batch.global_batch_size;
    progress.consumed_samples += progress.sample_in_epoch - begin;
    return progress;
  }
  const std::int64_t num_later = num_applied - steps_in_epoch;
  const std::int64_t num_whole_epochs = num_later / batch.steps_per_epoch();
  progress.epoch += 1 + num_whole_epochs;
  progress.sample_in_epoch = batch.position_after(num_later % batch.steps_per_epoch());
  progress.consumed_samples += batch.samples_between(begin, batch.num_samples) +
                               num_whole_epochs * batch.used_samples() + progress.sample_in_epoch;
  return progress;
}

double PlanCourse::epochs(std::int64_t epoch, std::int64_t sample) const {
  const BatchPlan& batch = plan_.batch();
  const double part =
      batch.has_length() ? static_cast<double>(sample) / static_cast<double>(batch.used_samples()) : 0.0;
  return static_cast<double>(epoch) + part;
}

CourseStep PlanCourse::operator[](std::int64_t n) const {
  state_.progress = progress_after(n);
  const Progress& progress = state_.progress;
  CourseStep at;
  at.step.step = progress.steps_taken;
  at.step.epoch = progress.epoch;
  at.step.first_sample = progress.sample_in_epoch;
  at.step.num_samples = samples_of_next_step(state_.end, state_.batch, progress);
  at.step.num_micro_batches = state_.batch.num_micro_batches_at(at.step.first_sample, at.step.num_samples);
  at.step.position = state_.position.position(progress);
  at.step.learning_rate = learning_rate(state_);
  at.consumed_samples = progress.consumed_samples;
  at.epochs = epochs(progress.epoch, progress.sample_in_epoch);
  return at;
}

std::int64_t PlanCourse::steps_before_epoch(std::int64_t epoch) const {
  const BatchPlan& batch = plan_.batch();
  const Progress& now = plan_.progress();
  if (epoch <= now.epoch) return 0;
  return batch.steps_between(now.sample_in_epoch, batch.num_samples) +
         (epoch - now.epoch - 1) * batch.steps_per_epoch();
}

std::int64_t PlanCourse::first_after_warmup() const {
  const auto warmup = static_cast<double>(plan_.warmup_steps());
  std::int64_t low = 0;
  std::int64_t high = num_steps_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if ((*this)[middle].step.position >= warmup) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

double PlanCourse::epochs_at_end() const {
  if (num_steps_ == 0) return epochs(plan_.progress().epoch, plan_.progress().sample_in_epoch);
  const StepPlan last = (*this)[num_steps_ - 1].step;
  return epochs(last.epoch, last.first_sample + last.num_samples);
}

std::int64_t PlanCourse::consumed_at_end() const {
  if (num_steps_ == 0) return plan_.progress().consumed_samples;
  const CourseStep last = (*this)[num_steps_ - 1];
  return last.consumed_samples + last.step.num_samples;
}

std::vector<Milestone> PlanCourse::milestones() const {
  if (num_steps_ == 0) return {};
  std::map<std::int64_t, std::string> names;
  const auto mark = [&](std::int64_t n, const std::string& name) {
    if (n < 0 || n >= num_steps_) return;
    std::string& known = names[n];
    known += known.empty() ? name : ", " + name;
  };
  mark(0, plan_.progress().steps_taken == 0 ? "first step" : "next step");
  if (const std::int64_t n = first_after_warmup(); n > 0) mark(n, "warm-up is over");
  if (plan_.batch().has_length()) {
    const std::int64_t last_epoch = (*this)[num_steps_ - 1].step.epoch;
    const auto every = static_cast<std::int64_t>(
        round_distance(std::max(1.0, static_cast<double>(last_epoch) / kMaxEpochs), AxisValues::whole_numbers));
    const std::int64_t first = plan_.progress().epoch + 1;
    for (std::int64_t epoch = (first + every - 1) / every * every; epoch <= last_epoch; epoch += every) {
      mark(steps_before_epoch(epoch), text("epoch ", epoch));
    }
  }
  mark(plan_.total_steps() / 2 - plan_.progress().steps_taken, "half-way");
  mark(num_steps_ - 1, "last step");
  std::vector<Milestone> milestones;
  for (const auto& [n, name] : names) milestones.push_back({name, (*this)[n]});
  return milestones;
}

std::string ranks_text(std::int64_t num_ranks) { return text(num_ranks, num_ranks == 1 ? " rank" : " ranks"); }

std::vector<NamedCourse> distinct_courses(const std::vector<TrainingPlan>& plans) {
  // The course depends on the ranks through the global batch alone.
  std::vector<std::vector<const TrainingPlan*>> groups;
  for (const TrainingPlan& plan : plans) {
    const auto same = [&plan](const std::vector<const TrainingPlan*>& group) {
      return group.front()->batch().global_batch_size == plan.batch().global_batch_size;
    };
    const auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) {
      groups.push_back({&plan});
    } else {
      group->push_back(&plan);
    }
  }
  std::vector<NamedCourse> courses;
  for (const auto& group : groups) {
    std::string name;
    for (const TrainingPlan* plan : group) name += text(name.empty() ? "" : ", ", plan->batch().num_ranks);
    name += group.size() == 1 && group.front()->batch().num_ranks == 1 ? " rank" : " ranks";
    courses.push_back({name, PlanCourse(*group.front())});
  }
  return courses;
}

}  // namespace lockstep
