#include "drivers/plan_request.hpp"

#include <limits>
#include <utility>

#include "drivers/command_line.hpp"
#include "drivers/plan_course.hpp"
#include "drivers/plan_flags.hpp"
#include "io/dataset_reader.hpp"

namespace lockstep {
namespace {

void require_one_at_most(bool first, bool second, const char* message) {
  if (first && second) throw Error(ErrorKind::usage, message);
}

DataShape data_of(const PlanRequest& request, const PlanState* stored) {
  require_one_at_most(request.num_samples.has_value(), !request.train_data.empty(),
                      "--num-samples and --train-data are both given (the file says how many samples it has): leave "
                      "one out");
  require_one_at_most(!request.samples_of_rank.empty(), request.num_samples || !request.train_data.empty(),
                      "--samples-of-rank is given together with --num-samples or --train-data (data either shards "
                      "itself or is shared by all ranks): leave one out");
  if (!request.samples_of_rank.empty()) return {{}, request.samples_of_rank};
  if (request.num_samples) return {request.num_samples, {}};
  if (!request.train_data.empty()) return {Hdf5Dataset(request.train_data, {request.inputs_name}).num_samples(), {}};
  if (stored != nullptr && stored->batch.is_sharded()) return {{}, stored->batch.samples_of_rank};
  if (stored != nullptr && stored->batch.has_length()) return {stored->batch.num_samples, {}};
  if (stored == nullptr && !request.options.max_steps) {
    throw Error(ErrorKind::usage,
                "the number of samples is not known (an epoch's length depends on it): give --num-samples or "
                "--train-data, or --max-steps for a stream without a length");
  }
  return {};
}

std::vector<std::int64_t> ranks_of(const PlanRequest& request, const PlanState* stored) {
  if (!request.ranks.empty()) return request.ranks;
  if (!request.samples_of_rank.empty()) return {static_cast<std::int64_t>(request.samples_of_rank.size())};
  return {stored != nullptr ? stored->batch.num_ranks : 1};
}

}  // namespace

void add_request_flags(CLI::App& app, PlanRequest& request) {
  const std::string data = "Data and ranks";
  add_count(app, "--num-samples", request.num_samples, kPositive, "Samples of the training set")->group(data);
  app.add_option("--train-data", request.train_data, "HDF5 file that is asked for its number of samples")
      ->option_text("FILE")
      ->group(data);
  app.add_option("--inputs-name", request.inputs_name, text("Data set of that file. Default: ", request.inputs_name))
      ->option_text("NAME")
      ->group(data);
  add_counts(app, "--samples-of-rank", request.samples_of_rank, kNotNegative,
             "Data that shards itself: the samples of each rank, which are not divided a second time")
      ->group(data);
  add_counts(app, "--ranks", request.ranks, {1, std::numeric_limits<int>::max()},
             "Numbers of ranks to plan for, shown side by side. Default: 1, or the checkpoint's")
      ->group(data);
  app.add_option("--from", request.from,
                 "Checkpoint to go on from, or a folder: its newest one. Shows each number old and new, only reads. "
                 "Options that are not given "
                 "are those of its run")
      ->option_text("CHECKPOINT")
      ->group(data);
  const std::string output = "Output (FILE - is standard output, in place of the tables)";
  app.add_option("--json", request.json, "Write the plan as one JSON object")->option_text("FILE")->group(output);
  app.add_option("--csv", request.csv, "Write the whole schedule, one line for each step")
      ->option_text("FILE")
      ->group(output);
  app.add_option("--plot", request.plot, "Draw the schedule as SVG")->option_text("FILE")->group(output);
  add_plan_flags(app, request.options);
}

PlanOptions options_to_go_on(const PlanState& stored, const PlanOptions& asked) {
  PlanOptions options;
  options.drop_last = stored.batch.drop_last;
  options.seed = stored.seed;
  options.shuffle = stored.shuffle;
  options.schedule = stored.schedule.options();
  options.schedule.custom = nullptr;  // the function of a program that is not here
  if (asked.schedule.warmup_steps || asked.schedule.warmup_samples || asked.schedule.warmup_ratio) {
    options.schedule.warmup_steps.reset();
    options.schedule.warmup_samples.reset();
    options.schedule.warmup_ratio.reset();
  }
  if (asked.num_train_epochs || asked.max_steps || asked.train_samples) return options;
  switch (stored.end.kind) {
    case RunEndKind::epochs:
      options.num_train_epochs = stored.end.requested;
      break;
    case RunEndKind::samples:
      options.train_samples = parse_count("--train-samples", stored.end.requested, kPositive);
      break;
    case RunEndKind::steps:
      options.max_steps = stored.end.steps;
      break;
  }
  return options;
}

PlanAnswer answer(const PlanRequest& request, const std::optional<AttributeTree>& stored) {
  PlanAnswer found;
  found.remarks = request.remarks;
  if (stored) found.stored = TrainingPlan::as_stored(*stored);
  const PlanState* before = found.stored ? &found.stored->state() : nullptr;
  const DataShape data = data_of(request, before);
  for (const std::int64_t ranks : ranks_of(request, before)) {
    const int num_ranks = static_cast<int>(ranks);
    try {
      found.plans.push_back(stored ? TrainingPlan::resumed(request.options, data, num_ranks, *stored)
                                   : TrainingPlan::fresh(request.options, data, num_ranks));
    } catch (const Error& error) {
      if (request.ranks.size() < 2) throw;
      throw Error(error.kind(), text("on ", ranks_text(ranks), ": ", error.what()));
    }
  }
  return found;
}

}  // namespace lockstep
