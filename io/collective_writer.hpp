#pragma once

#include <string>

#include "runtime/plan/communicator.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// **Collective.** Writes the elements of a snapshot into the datasets of an existing checkpoint file with HDF5's
/// collective write, tensor by tensor in the snapshot's order, and makes them durable. A rank without a part of a
/// tensor takes part with an empty selection; no call moves more than 1 GiB a rank.
///
/// The file is opened with a plain duplicate of MPI's world, whose ranks must be the communicator's. Without MPI one
/// rank writes alone. Throws Error on all ranks.
void write_collectively(Communicator& communicator, const std::string& path, const Snapshot& snapshot);

}  // namespace lockstep
