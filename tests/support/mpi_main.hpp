#pragma once

#include <memory>

#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep::test {

/// The session of this test program, from before the first test to after the last one.
const MpiSession& session();

/// **Collective.** A communicator over session(); lines for the log go to `report`, or nowhere.
std::unique_ptr<Communicator> make(CommunicatorKind kind = CommunicatorKind::automatic, Reporter report = {});

}  // namespace lockstep::test
