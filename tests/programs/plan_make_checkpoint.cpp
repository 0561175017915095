// Writes a checkpoint of a run that takes some steps, for the tests of lockstep-plan. Prints its path.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "drivers/command_line.hpp"
#include "drivers/plan_flags.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_format.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "runtime/plan/training_plan.hpp"

namespace lockstep {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Writes a checkpoint of a run of no model.", "plan_make_checkpoint");
  prepare_command_line(app);
  PlanOptions options;
  DataShape data;
  int num_ranks = 1;
  std::int64_t num_steps = 0;
  std::string folder;
  add_plan_flags(app, options);
  add_count(app, "--num-samples", data.num_samples, kPositive, "Samples of the training set");
  add_count(app, "--ranks", num_ranks, kPositive, "Ranks of the run");
  add_count(app, "--steps", num_steps, kNotNegative, "Steps that it takes");
  app.add_option("--folder", folder, "Where the checkpoint goes")->required();
  if (const auto exit_code = parse_command_line(app, argc, argv)) return *exit_code;

  TrainingPlan plan = TrainingPlan::fresh(options, data, num_ranks);
  for (std::int64_t step = 0; step < num_steps; ++step) plan.complete_step(true);
  std::vector<float> weights(6, 0.5f);
  Snapshot snapshot;
  snapshot.step = plan.progress().steps_taken;
  plan.store(snapshot.attributes);
  snapshot.tensors.push_back({{"weights", "layer.weight", ElementType::float32, {2, 3}},
                              0,
                              6,
                              reinterpret_cast<std::byte*>(weights.data())});
  OneProcessCommunicator communicator;
  CheckpointOptions storage;
  storage.directory = folder;
  CheckpointDirectory directory(communicator, storage);
  directory.start_save(snapshot);
  directory.finish();
  std::cout << folder << '/' << checkpoint_file_name(snapshot.step) << '\n';
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run_program("plan_make_checkpoint", argc, argv, lockstep::run); }
