#pragma once

#include <memory>

#include "runtime/comm/mpi_session.hpp"
#include "runtime/comm/shared_memory_communicator.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

enum class CommunicatorKind {
  automatic,     ///< one process; or shared memory where all ranks are on one node and can share it; or MPI
  mpi,           ///< MPI, also on one node
  shared_memory  ///< shared memory, or an Error where the ranks cannot share it
};

/// **Collective.** The ranks of `session`, which must outlive the result. `report` takes what the log should know,
/// on rank 0: which way was chosen, and why not a faster one. The results are the same bits on every way.
std::unique_ptr<Communicator> make_communicator(const MpiSession& session, CommunicatorKind kind, Reporter report);

}  // namespace lockstep
