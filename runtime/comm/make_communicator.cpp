#include "runtime/comm/make_communicator.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/device_of_rank.hpp"
#include "runtime/comm/device_plugin.hpp"
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

std::optional<int> choose_device(Communicator& control, DeviceKind kind, const DriverReport& driver,
                                 const Reporter& report) {
  if (kind == DeviceKind::cpu) return std::nullopt;
  const std::vector<std::string> reasons = gather_texts(control, driver.num_devices > 0 ? "" : driver.why_no_device);
  std::vector<int> without;
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) without.push_back(static_cast<int>(rank));
  }
  if (!without.empty()) {
    const std::string& why = reasons[static_cast<std::size_t>(without.front())];
    if (without.size() < reasons.size()) {
      throw Error(ErrorKind::usage, text(name_ranks(without), " ", without.size() == 1 ? "sees" : "see",
                                         " no device, but the other ranks do (", why,
                                         "): ask for as many devices as ranks on every node, or train with --device "
                                         "cpu"));
    }
    if (kind == DeviceKind::cuda) {
      throw Error(ErrorKind::usage, text("no device can be used (", why,
                                         "): start on a node with a device, or train with --device cpu"));
    }
    if (control.rank() == 0) report(text("the run trains on the CPU: ", why));
    return std::nullopt;
  }
  int index = 0;
  agree(control, [&] { index = device_of_rank(driver.num_devices, control.local_rank(), DeviceSharing::refused); });
  return index;
}

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, CommunicatorKind kind, DeviceKind device,
                                                const DeviceSettings& settings, Reporter report) {
  if (device == DeviceKind::cpu) return make_communicator(session, kind, std::move(report));
  std::unique_ptr<DeviceApi> api;
  {
    MpiCommunicator control(session);
    DriverReport driver = ask_device_driver();
    if (driver.num_devices > 0 && device == DeviceKind::automatic && !DevicePlugin::is_expected()) {
      driver = {0, driver.cuda_version, text("it sees ", driver.num_devices, " devices, but was built without CUDA")};
    }
    const std::optional<int> index = choose_device(control, device, driver, report);
    if (index) {
      agree(control, [&] {
        const DevicePlugin plugin = DevicePlugin::load();
        check_driver_version(driver.cuda_version, plugin.cuda_version());
        api = plugin.make_device(*index);
      });
    }
  }
  if (!api) return make_communicator(session, kind, std::move(report));
  return std::make_unique<DeviceCommunicator>(session, std::move(api), settings);
}

}  // namespace lockstep
