#pragma once

#include <optional>

#include "drivers/train_options.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/launch/slurm_environment.hpp"
#include "runtime/launch/stop_signals.hpp"

namespace lockstep {

/// When the allocation of this launch ends, in unix seconds: from Slurm, or from --time-limit. On one rank, before
/// MPI_Init. Throws Error(usage) for a time limit that cannot be read.
std::optional<double> allocation_end_of(const TrainCommand& command, const SlurmEnvironment& environment);

/// **Collective.** One launch of a training run: opens the data, goes on from a checkpoint or starts, trains until
/// the end or until it is asked to stop, tells about it on rank 0. Returns the exit code: 0 or 85. Throws Error.
int run_training(const TrainCommand& command, const MpiSession& session, const SlurmEnvironment& environment,
                 const StopSignals& signals, std::optional<double> allocation_end_seconds);

}  // namespace lockstep
