// lockstep-train: trains a built-in model on HDF5 data, on any number of MPI ranks.

#include <mpi.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <exception>
#include <iostream>
#include <optional>
#include <thread>

#include "drivers/command_line.hpp"
#include "drivers/option_rules.hpp"
#include "drivers/train_options.hpp"
#include "drivers/train_run.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/launch/slurm_environment.hpp"
#include "runtime/launch/stop_signals.hpp"
#include "runtime/train/host_memory.hpp"
#include "runtime/train/numerics.hpp"

namespace {

using namespace lockstep;

constexpr double leave_together_seconds = 5.0;

/// True when all ranks come here within a few seconds: then the failure is known to all and they can end in order.
bool all_ranks_are_here(const MpiSession& session) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(session.comm(), &request) != MPI_SUCCESS) return false;
  const auto start = std::chrono::steady_clock::now();
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > leave_together_seconds)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done != 0;
}

/// Tells what happened, once if all ranks know it, and leaves with `exit_code`; ends the others if they do not.
int leave(const MpiSession& session, const std::string& message, int exit_code) {
  const bool together = all_ranks_are_here(session);
  if (!together) std::cerr << "lockstep-train: rank " << session.rank() << ": " << message << std::endl;
  if (together && session.rank() == 0) std::cerr << "lockstep-train: " << message << std::endl;
  if (!together) session.abort(exit_code);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  tell_what_nobody_catches("lockstep-train");
  keep_freed_memory();
  flush_subnormals();
  CLI::App app(
      "Trains a model on HDF5 data, the same on any number of MPI ranks to the last bit.\n"
      "Exit codes: 0 finished; 85 interrupted, the state is saved, start again; 1 failed, a retry may help;\n"
      "2 wrong usage; 86 do not start again: the model or the data is broken, there is no progress, or the run was\n"
      "interrupted and saves nothing.",
      "lockstep-train");
  TrainCommand command;
  prepare_command_line(app);
  add_train_flags(app, command);
  const SlurmEnvironment environment = SlurmEnvironment::read();  // first: it says who tells what is wrong
  const bool is_speaker = environment.launch_rank.value_or(0) == 0;
  if (const std::optional<int> exit_code = parse_command_line(app, argc, argv, is_speaker)) return *exit_code;

  std::optional<StopSignals> signals;
  std::optional<double> allocation_end_seconds;
  try {
    require_partners(app, command);
    command.unused_options = unused_train_flags(app, command);
    command.device_options = given_device_flags(app);
    resolve_device_options(command);
    if (command.deterministic) use_deterministic_algorithms();
    signals.emplace(parse_stop_signals(command.stop_signals));
    // Asks Slurm through a child process, which MPI does not like once it runs.
    if (is_speaker) allocation_end_seconds = allocation_end_of(command, environment);
  } catch (const Error& error) {
    if (is_speaker) std::cerr << "lockstep-train: " << error.what() << std::endl;
    return error.exit_code();
  }

  const MpiSession session;
  try {
    return run_training(command, session, environment, *signals, allocation_end_seconds);
  } catch (const Error& error) {
    return leave(session, error.what(), error.exit_code());
  } catch (const std::exception& error) {
    return leave(session, error.what(), static_cast<int>(ErrorKind::failed));
  }
}
