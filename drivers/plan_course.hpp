#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/training_plan.hpp"

namespace lockstep {

/// A step of the future, with what will have been consumed before it.
struct CourseStep {
  StepPlan step;
  std::int64_t consumed_samples = 0;  ///< of the whole run, before the step
  double epochs = 0.0;                ///< where the step begins: 2.5 is in the middle of the third epoch
};

/// A step worth to be shown, and why.
struct Milestone {
  std::string name;  ///< "first step", "warm-up is over", "epoch 2", ...
  CourseStep at;
};

/// The steps that a plan still has, as they come when each is applied.
///
/// Any step is answered by itself in constant time, so a run of 10^7 steps is drawn as fast as one of ten.
class PlanCourse {
 public:
  /// The course from `plan`'s next step on. Keeps its own copy of the plan.
  explicit PlanCourse(TrainingPlan plan);

  const TrainingPlan& plan() const { return plan_; }

  std::int64_t num_steps() const { return num_steps_; }

  /// The n-th of the steps left, 0 <= n < num_steps(). Not for several threads at a time.
  CourseStep operator[](std::int64_t n) const;

  /// How many of the steps left begin before `epoch` does.
  std::int64_t steps_before_epoch(std::int64_t epoch) const;

  /// The first of the steps left that lies behind the warm-up; num_steps() when there is none.
  std::int64_t first_after_warmup() const;

  /// The run's position in epochs and in samples when it is over.
  double epochs_at_end() const;
  std::int64_t consumed_at_end() const;

  /// First step, end of warm-up, beginnings of epochs (some of many), half-way, last step; rising.
  std::vector<Milestone> milestones() const;

 private:
  Progress progress_after(std::int64_t num_applied) const;
  double epochs(std::int64_t epoch, std::int64_t sample) const;

  TrainingPlan plan_;
  std::int64_t num_steps_;
  mutable PlanState state_;  // the plan's state, moved to the step that is asked for
};

/// Courses that are the same whatever the number of ranks, under one name: "1, 2, 3 ranks".
struct NamedCourse {
  std::string name;
  PlanCourse course;
};

/// The different courses of plans that differ in their ranks alone, in their order.
std::vector<NamedCourse> distinct_courses(const std::vector<TrainingPlan>& plans);

/// "1 rank", "3 ranks".
std::string ranks_text(std::int64_t num_ranks);

}  // namespace lockstep
