#include "runtime/plan/plan_advice.hpp"

#include "runtime/plan/error.hpp"
#include "runtime/plan/schedule_options.hpp"

namespace lockstep {

std::vector<std::string> plan_advice(const PlanOptions& options, const PlanState& state) {
  const BatchPlan& batch = state.batch;
  std::vector<std::string> advice;
  if (options.max_steps && options.num_train_epochs) {
    advice.push_back(text("--max-steps ", *options.max_steps, " wins over --num-train-epochs ",
                          *options.num_train_epochs, ", which is not used"));
  }
  if (batch.num_working_ranks() < batch.num_ranks) {
    advice.push_back(text(batch.num_ranks - batch.num_working_ranks(), " of ", batch.num_ranks,
                          " ranks never get work: a step has only ", batch.num_working_ranks(),
                          " micro-batches (global batch ", batch.global_batch_size, ", micro-batch ",
                          batch.micro_batch_size, "); use fewer ranks or a smaller micro-batch"));
  }
  if (batch.num_working_ranks() == batch.num_ranks && batch.utilization() < 0.75) {
    advice.push_back(text("the ranks are busy only ", static_cast<int>(100.0 * batch.utilization()),
                          " % of a step: ", batch.num_micro_batches(batch.global_batch_size),
                          " micro-batches are dealt to ", batch.num_ranks, " ranks, so that some run ",
                          batch.accumulation_steps(), " and the others wait"));
  }
  if (batch.has_length() && batch.steps_per_epoch() == 1) {
    advice.push_back(text("one step an epoch: the global batch of ", batch.global_batch_size, " takes all ",
                          batch.num_samples, " samples at once"));
  }
  if (batch.has_length() && batch.drop_last && batch.used_samples() < batch.num_samples) {
    advice.push_back(text("--drop-last leaves out ", batch.num_samples - batch.used_samples(), " of ",
                          batch.num_samples, " samples in every epoch"));
  }
  if (batch.micro_batch_size > batch.global_batch_size) {
    advice.push_back(text("the micro-batch of ", batch.micro_batch_size, " is never filled: the global batch has ",
                          batch.global_batch_size, " samples"));
  }
  const ScheduleOptions& schedule = state.schedule.options();
  const bool warmup_asked = schedule.warmup_steps.value_or(0) > 0 || schedule.warmup_samples.value_or(0) > 0 ||
                            schedule.warmup_ratio.value_or("0") != "0";
  if (schedule.kind == ScheduleKind::constant && warmup_asked) {
    advice.push_back(
        "the schedule constant has no warm-up, so the warm-up asked for is not used "
        "(constant-with-warmup has one)");
  }
  for (std::string& sentence : schedule_advice(state.schedule)) advice.push_back(std::move(sentence));
  return advice;
}

}  // namespace lockstep
