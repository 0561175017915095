#include "runtime/comm/make_communicator.hpp"

#include <utility>

#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, CommunicatorKind kind, Reporter report) {
  if (kind == CommunicatorKind::mpi) return std::make_unique<MpiCommunicator>(session);
  if (kind == CommunicatorKind::shared_memory) {
    if (!session.is_one_node()) {
      throw Error(ErrorKind::usage, text("shared memory was asked for, but not all ", session.num_ranks(),
                                         " ranks are on one node: ask for MPI, or leave the choice to the program"));
    }
    return std::make_unique<SharedMemoryCommunicator>(session, std::move(report));
  }
  if (session.num_ranks() == 1) return std::make_unique<OneProcessCommunicator>();
  // Whether a node holds all ranks is the same on every rank: it does when its own count is that of the run.
  if (session.is_one_node()) {
    try {
      return std::make_unique<SharedMemoryCommunicator>(session, report);
    } catch (const Error& error) {  // the same on all ranks
      if (session.rank() == 0) report(text("the ranks of this node talk through MPI, because ", error.what()));
    }
  }
  return std::make_unique<MpiCommunicator>(session);
}

}  // namespace lockstep
