#pragma once

#include <mpi.h>

#include <functional>
#include <string>

#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {

/// **Collective.** Runs `work` on the first `num_ranks` ranks of the session, over a communicator of their own; the
/// other ranks go on at once.
inline void on_first_ranks(int num_ranks, const std::function<void(Communicator&)>& work) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(session().comm(), session().rank() < num_ranks ? 0 : MPI_UNDEFINED, session().rank(), &part);
  if (part == MPI_COMM_NULL) return;
  {
    const MpiSession some(part);
    const auto communicator = make_communicator(some, CommunicatorKind::automatic, [](const std::string&) {});
    work(*communicator);
  }
  MPI_Comm_free(&part);
}

}  // namespace lockstep::test
