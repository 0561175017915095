#pragma once

#include <string>

#include "io/checkpoint_catalogue.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// **Collective.** The record of this launch: now, these ranks and their hosts, `versions` with those of HDF5 and
/// MPI.
LaunchRecord record_of_this_launch(Communicator& communicator, const std::string& versions);

/// The name of the MPI library, "Open MPI v4.1.4".
std::string mpi_version();

/// This node's name.
std::string host_name();

/// **Collective.** True when all ranks run on one node.
bool is_on_one_node(Communicator& communicator);

}  // namespace lockstep
