#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/training_plan.hpp"

namespace lockstep {

/// What lockstep-plan was asked.
struct PlanRequest {
  PlanOptions options;
  std::optional<std::int64_t> num_samples;
  std::vector<std::int64_t> samples_of_rank;  ///< data that shards itself
  std::string train_data;                     ///< a file that is asked for its number of samples; may be empty
  std::string inputs_name = "images";         ///< the data set in it
  std::vector<std::int64_t> ranks;            ///< rank counts to compare; empty: one, or the checkpoint's
  std::string from;                           ///< a checkpoint to go on from; may be empty
  std::string json;                           ///< files to write, "-" for standard output; empty for none
  std::string csv;
  std::string plot;
  std::vector<std::string> remarks;  ///< what the parse noticed, in sentences
};

/// Adds the options of lockstep-plan, those of the plan itself among them. `request` must outlive the parse.
void add_request_flags(CLI::App& app, PlanRequest& request);

/// The options of the run that a checkpoint holds, for those that `asked` leaves open: a resume's command line need
/// not repeat them. How long the run is, and how long it warms up, count as one option each.
PlanOptions options_to_go_on(const PlanState& stored, const PlanOptions& asked);

/// One plan for each rank count, and with a checkpoint also what it holds.
struct PlanAnswer {
  std::optional<TrainingPlan> stored;
  std::vector<TrainingPlan> plans;   ///< at least one
  std::vector<std::string> remarks;  ///< on the request as such
};

/// Resolves a request from a run's start, or from `stored`, the attributes of its checkpoint. Reads the size of the
/// data set where it is asked for. Throws Error(usage) with the reason when there is no such plan.
PlanAnswer answer(const PlanRequest& request, const std::optional<AttributeTree>& stored);

}  // namespace lockstep
