#include "drivers/plan_json.hpp"

#include <nlohmann/json.hpp>

#include "drivers/plan_course.hpp"
#include "drivers/plan_facts.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json milestones_of(const PlanCourse& course) {
  Json list = Json::array();
  for (const Milestone& milestone : course.milestones()) {
    list.push_back({{"name", milestone.name},
                    {"steps_taken", milestone.at.step.step},
                    {"epoch", milestone.at.step.epoch},
                    {"consumed_samples", milestone.at.consumed_samples},
                    {"lr", milestone.at.step.learning_rate}});
  }
  return list;
}

Json object_of(const TrainingPlan& plan) {
  const BatchPlan& batch = plan.batch();
  const bool has_length = batch.has_length();
  const PlanCourse course(plan);
  const auto of_epoch = [has_length](std::int64_t number) { return has_length ? Json(number) : Json(nullptr); };
  Json object = {{"ranks", batch.num_ranks},
                 {"samples", of_epoch(batch.num_samples)},
                 {"global_batch_size", batch.global_batch_size},
                 {"micro_batch_size", batch.micro_batch_size},
                 {"gradient_accumulation_steps", batch.accumulation_steps()},
                 {"drop_last", batch.drop_last},
                 {"steps_per_epoch", of_epoch(batch.steps_per_epoch())},
                 {"samples_per_epoch", of_epoch(batch.used_samples())},
                 {"total_steps", plan.total_steps()},
                 {"steps_taken", plan.progress().steps_taken},
                 {"steps_left", plan.steps_left()},
                 {"warmup_steps", plan.warmup_steps()},
                 {"end", plan.state().end.description()},
                 {"consumed_samples", plan.progress().consumed_samples},
                 {"consumed_samples_at_end", course.consumed_at_end()},
                 {"working_ranks", batch.num_working_ranks()},
                 {"utilization", batch.utilization()}};
  if (const std::optional<EpochLoad> load = epoch_load(batch)) {
    object["utilization_of_epoch"] = load->utilization;
    object["samples_of_rank_in_epoch"] = {load->samples.least, load->samples.most};
    object["micro_batches_of_rank_in_epoch"] = {load->micro_batches.least, load->micro_batches.most};
  }
  object["schedule"] = name_of(plan.state().schedule.options().kind);
  object["base_learning_rate"] = plan.state().base_rate.rate;
  object["milestones"] = milestones_of(course);
  object["warnings"] = plan.warnings();
  return object;
}

Json changes_of(const TrainingPlan& plan) {
  Json list = Json::array();
  for (const PlanChange& change : plan.changes()) {
    list.push_back({{"name", change.name}, {"old", change.before}, {"new", change.after}});
  }
  return list;
}

}  // namespace

nlohmann::ordered_json to_json(const PlanAnswer& answer) {
  Json object;
  if (answer.stored) {
    object["old"] = object_of(*answer.stored);
    object["new"] = object_of(answer.plans.front());
    object["changes"] = changes_of(answer.plans.front());
  } else {
    object = object_of(answer.plans.front());
  }
  object["remarks"] = answer.remarks;
  if (answer.plans.size() == 1) return object;
  object["plans"] = Json::array();
  for (const TrainingPlan& plan : answer.plans) object["plans"].push_back(object_of(plan));
  return object;
}

}  // namespace lockstep
