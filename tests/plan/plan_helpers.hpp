#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/coverage.hpp"
#include "runtime/plan/error.hpp"
#include "runtime/plan/training_plan.hpp"

namespace lockstep {

/// One data set of that many samples.
inline DataShape samples(std::int64_t num_samples) { return {num_samples, {}}; }

/// Options of a run with this micro-batch, accumulation and end (a decimal number of epochs).
inline PlanOptions run_of(std::int64_t micro_batch, std::int64_t accumulation, const std::string& epochs) {
  PlanOptions options;
  options.micro_batch_size = micro_batch;
  options.gradient_accumulation_steps = accumulation;
  options.num_train_epochs = epochs;
  return options;
}

/// What a checkpoint of the plan holds.
inline AttributeTree stored(const TrainingPlan& plan) {
  AttributeTree tree;
  plan.store(tree);
  return tree;
}

/// The ids of the next step, dealt to the ranks and put together again.
inline std::vector<std::int64_t> next_ids(const TrainingPlan& plan) {
  const StepPlan step = plan.next_step();
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < plan.batch().num_ranks; ++rank) {
    const StepShare share = plan.batch().share_at(step.first_sample, step.num_samples, rank);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(share.num_samples));
    plan.sample_ids(step.epoch, share.first_sample, ids);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

/// Takes the next step as a trainer does: every rank marks the samples that it reads.
inline void take_step(TrainingPlan& plan, bool applied = true) {
  const StepPlan step = plan.next_step();
  std::uint64_t mark = 0;
  for (int rank = 0; rank < plan.batch().num_ranks; ++rank) {
    const StepShare share = plan.batch().share_at(step.first_sample, step.num_samples, rank);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(share.num_samples));
    plan.sample_ids(step.epoch, share.first_sample, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      mark += sample_mark(step.epoch, share.first_sample + static_cast<std::int64_t>(i), ids[i]);
    }
  }
  plan.complete_step(applied, 1, mark);
}

inline void take_steps(TrainingPlan& plan, int count) {
  for (int step = 0; step < count; ++step) take_step(plan);
}

/// The rates of all steps to the end.
inline std::vector<double> rates_to_the_end(TrainingPlan plan) {
  std::vector<double> rates;
  while (!plan.finished()) {
    rates.push_back(plan.next_step().learning_rate);
    plan.complete_step(true);
  }
  return rates;
}

/// Expects that `work` is refused with an Error whose text holds all of `parts`.
inline void expect_refusal(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

/// The line of a resume with this name.
inline PlanChange change_of(const TrainingPlan& plan, const std::string& name) {
  for (const PlanChange& change : plan.changes()) {
    if (change.name == name) return change;
  }
  ADD_FAILURE() << "no change is named " << name;
  return {};
}

/// True when a warning holds `part`.
inline bool warns(const TrainingPlan& plan, const std::string& part) {
  for (const std::string& warning : plan.warnings()) {
    if (warning.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace lockstep
