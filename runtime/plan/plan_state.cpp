#include "runtime/plan/plan_state.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/plan/sampler.hpp"
#include "runtime/plan/schedule_options.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t num_compared_ids = 8;

RunEndKind run_end_kind_from(const std::string& name) {
  if (name == "epochs") return RunEndKind::epochs;
  if (name == "samples") return RunEndKind::samples;
  if (name == "steps") return RunEndKind::steps;
  throw Error(ErrorKind::failed, text("the stored attribute plan/end_kind is '", name, "': take another checkpoint"));
}

std::string name_of(RunEndKind kind) {
  return kind == RunEndKind::epochs ? "epochs" : kind == RunEndKind::samples ? "samples" : "steps";
}

std::string listed(const std::vector<std::int64_t>& ids) {
  std::string all;
  for (const std::int64_t id : ids) all += text(all.empty() ? "" : ", ", id);
  return all;
}

void store_plan(const PlanState& state, AttributeGroup& group) {
  const BatchPlan& batch = state.batch;
  group["num_samples"] = batch.num_samples;
  group["global_batch_size"] = batch.global_batch_size;
  group["micro_batch_size"] = batch.micro_batch_size;
  group["drop_last"] = std::int64_t{batch.drop_last};
  if (batch.is_sharded()) group["samples_of_rank"] = batch.samples_of_rank;
  group["steps_per_epoch"] = batch.steps_per_epoch();
  group["steps_left"] = steps_left(state);
  group["total_steps"] = state.progress.steps_taken + steps_left(state);
  group["end_kind"] = name_of(state.end.kind);
  group["end_requested"] = state.end.requested;
  group["end_steps"] = state.end.steps;
  group["end_epoch"] = state.end.epoch;
  group["end_sample"] = state.end.sample;
}

/// What depends on the ranks of this launch: kept apart, so that the same step saved by other ranks is the same
/// state.
void store_provenance(const PlanState& state, AttributeGroup& group) {
  group["num_ranks"] = std::int64_t{state.batch.num_ranks};
  group["accumulation_steps"] = state.batch.accumulation_steps();
}

void store_schedule(const PlanState& state, AttributeGroup& group) {
  store_schedule_options(state.schedule.options(), group);
  group["total_steps"] = state.schedule.total_steps();
  group["warmup_steps"] = state.schedule.warmup_steps();
  group["base_learning_rate"] = state.base_rate.rate;
  group["reference_learning_rate"] = state.base_rate.reference_rate;
  group["reference_global_batch_size"] = state.base_rate.reference_batch;
  state.position.store(group);
  if (state.schedule.options().kind == ScheduleKind::reduce_on_plateau) state.plateau.store(group);
  group["next_position"] = state.position.position(state.progress);
  group["next_learning_rate"] = learning_rate(state);
}

}  // namespace

BaseRate BaseRate::followed(LrScaling scaling, std::int64_t global_batch_size) const {
  if (scaling == LrScaling::none) return {rate, rate, global_batch_size};
  const double ratio = static_cast<double>(global_batch_size) / static_cast<double>(reference_batch);
  return {reference_rate * (scaling == LrScaling::linear ? ratio : std::sqrt(ratio)), reference_rate,
          reference_batch};
}

std::int64_t steps_left(const PlanState& state) { return steps_left(state.end, state.batch, state.progress); }

double learning_rate(const PlanState& state) {
  const double factor = state.schedule.factor(state.position.position(state.progress));
  const double rate = state.base_rate.rate * factor;
  return state.schedule.options().kind == ScheduleKind::reduce_on_plateau ? rate * state.plateau.factor : rate;
}

std::vector<std::int64_t> next_sample_ids(const PlanState& state) {
  if (!state.batch.has_length() || steps_left(state) == 0) return {};
  const Progress& progress = state.progress;
  const std::int64_t samples = samples_of_next_step(state.end, state.batch, progress);
  const SampleRange first = state.batch.ranges_of_step(progress.sample_in_epoch, samples).front();
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(num_compared_ids, first.end - first.begin)));
  fill_sample_ids(state.batch, state.shuffle, state.seed, progress.epoch, first.begin, ids);
  return ids;
}

void pass_over_tail(const BatchPlan& batch, Progress& progress) {
  if (!batch.has_length() || batch.steps_between(progress.sample_in_epoch, batch.num_samples) > 0) return;
  ++progress.epoch;
  progress.sample_in_epoch = 0;
}

void store(const PlanState& state, AttributeTree& tree) {
  store_plan(state, tree["plan"]);
  store_provenance(state, tree["provenance"]);
  state.origin.store(tree);
  for (auto& [name, value] : to_attributes(state.progress)) tree["progress"][name] = value;
  store_schedule(state, tree["schedule"]);
  tree["sampler"]["shuffle"] = name_of(state.shuffle);
  tree["sampler"]["seed"] = static_cast<std::int64_t>(state.seed);
  if (const auto ids = next_sample_ids(state); !ids.empty()) tree["sampler"]["next_sample_ids"] = ids;
  state.coverage.store(tree);
}

PlanState plan_state_from(const AttributeTree& tree, const std::function<double(double, double)>& custom) {
  const auto plan = [&](const char* name) { return attribute<std::int64_t>(tree, "plan", name); };
  PlanState state;
  state.shuffle = shuffle_kind_from(attribute<std::string>(tree, "sampler", "shuffle"));
  state.seed = static_cast<std::uint64_t>(attribute<std::int64_t>(tree, "sampler", "seed"));
  state.batch.num_samples = plan("num_samples");
  state.batch.global_batch_size = plan("global_batch_size");
  state.batch.micro_batch_size = plan("micro_batch_size");
  state.batch.num_ranks = static_cast<int>(attribute<std::int64_t>(tree, "provenance", "num_ranks"));
  state.batch.drop_last = plan("drop_last") != 0;
  if (has_attribute(tree, "plan", "samples_of_rank")) {
    state.batch.samples_of_rank = attribute<std::vector<std::int64_t>>(tree, "plan", "samples_of_rank");
  }
  state.origin = BatchOrigin::from(tree);
  state.end.kind = run_end_kind_from(attribute<std::string>(tree, "plan", "end_kind"));
  state.end.requested = attribute<std::string>(tree, "plan", "end_requested");
  state.end.steps = plan("end_steps");
  state.end.epoch = plan("end_epoch");
  state.end.sample = plan("end_sample");
  state.schedule =
      LrSchedule(schedule_options_from(tree, custom), attribute<std::int64_t>(tree, "schedule", "total_steps"),
                 attribute<std::int64_t>(tree, "schedule", "warmup_steps"));
  state.base_rate = {attribute<double>(tree, "schedule", "base_learning_rate"),
                     attribute<double>(tree, "schedule", "reference_learning_rate"),
                     attribute<std::int64_t>(tree, "schedule", "reference_global_batch_size")};
  state.position = SchedulePosition::from(tree);
  if (state.schedule.options().kind == ScheduleKind::reduce_on_plateau) state.plateau = PlateauTracker::from(tree);
  state.progress = progress_from(tree);
  state.coverage = Coverage::from(tree);
  const BatchPlan& batch = state.batch;
  const bool batch_is_sound =
      batch.num_samples >= 0 && batch.global_batch_size > 0 && batch.micro_batch_size > 0 && batch.num_ranks > 0 &&
      state.origin.reference_ranks > 0 && state.base_rate.reference_batch > 0 &&
      (!batch.is_sharded() || batch.samples_of_rank.size() == static_cast<std::size_t>(batch.num_ranks));
  if (!batch_is_sound) {
    throw Error(ErrorKind::failed, text("the stored plan is damaged (", batch.num_samples, " samples, global batch ",
                                        batch.global_batch_size, ", micro-batch ", batch.micro_batch_size, ", ",
                                        batch.num_ranks, " ranks): take another checkpoint"));
  }
  return state;
}

void verify_next_rate(const PlanState& state, const AttributeTree& tree) {
  const double stored_rate = attribute<double>(tree, "schedule", "next_learning_rate");
  const double rate = learning_rate(state);
  const bool same_rate = std::abs(stored_rate - rate) <= 1e-12 * std::max(std::abs(stored_rate), std::abs(rate));
  if (!same_rate) {
    throw Error(ErrorKind::failed,
                text("the checkpoint's next step has the learning rate ", shortest(stored_rate),
                     ", and this program computes ", shortest(rate),
                     " from the same plan (a damaged file, or another version or custom schedule): resume with the "
                     "program that wrote it, or take another checkpoint"));
  }
}

void verify_next_ids(const PlanState& state, const AttributeTree& tree) {
  std::vector<std::int64_t> stored_ids;
  if (has_attribute(tree, "sampler", "next_sample_ids")) {
    stored_ids = attribute<std::vector<std::int64_t>>(tree, "sampler", "next_sample_ids");
  }
  const auto ids = next_sample_ids(state);
  if (stored_ids != ids) {
    throw Error(ErrorKind::failed,
                text("the checkpoint's next batch begins with the samples ", listed(stored_ids),
                     ", and this program would read ", listed(ids),
                     " (a damaged file, or another version): resume with the program that wrote it, or take another "
                     "checkpoint"));
  }
}

}  // namespace lockstep
