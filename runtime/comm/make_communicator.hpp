#pragma once

#include <memory>

#include "runtime/comm/device_communicator.hpp"
#include "runtime/comm/device_driver.hpp"
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

enum class DeviceKind {
  automatic,  ///< CUDA where every rank sees a device, the CPU where none does
  cpu,        ///< the CPU, also where there are devices
  cuda        ///< CUDA, or an Error
};

/// **Collective.** The index, among the devices it sees, of the one that this rank trains on; none: the CPU. `driver`
/// is what this rank was told, and may differ from the others'. Throws the same Error on all ranks where some see a
/// device and others do not, or where there are more ranks than devices. `report` as above: why it is the CPU.
std::optional<int> choose_device(Communicator& control, DeviceKind kind, const DriverReport& driver,
                                 const Reporter& report);

/// **Collective.** As above, on the CPU or on devices. Nothing of CUDA is loaded before a rank is known to use it.
std::unique_ptr<Communicator> make_communicator(const MpiSession& session, CommunicatorKind kind, DeviceKind device,
                                                const DeviceSettings& settings, Reporter report);

}  // namespace lockstep
