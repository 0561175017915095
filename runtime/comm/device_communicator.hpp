#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runtime/comm/device_api.hpp"
#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/comm/roll_call.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {

/// How exchanges on a device are done.
struct DeviceSettings {
  ReductionOrder reduction = ReductionOrder::fast;
  double timeout_seconds = 600.0;                            ///< --communication-timeout; 0: wait for ever
  std::int64_t max_staging_bytes = std::int64_t{256} << 20;  ///< memory for other ranks' gradients in exact order
};

/// The ranks of a session, one device each: flat states live on the devices and travel between them; the few bytes
/// of the host (barrier, broadcast, all_gather) go over MPI, once all ranks have come.
///
/// The host waits for devices in wait_for_device() and wait_until() alone, and at first use, while connections are
/// made. A rank that does not come, to an exchange or to the few bytes, is an Error that names it, on every rank that
/// waits: the network is given up before it is thrown, so that nothing hangs afterwards; the object can then only be
/// destroyed. The session must outlive it.
/// Construction and destruction are **collective**; a rank that unwinds from an exception goes alone. One rank uses
/// the network like any other, so that one device shows what many will do.
class DeviceCommunicator final : public Communicator {
 public:
  /// Throws Error, on all ranks, where they cannot be connected or two of them have the same device.
  DeviceCommunicator(const MpiSession& session, std::unique_ptr<DeviceApi> device, const DeviceSettings& settings,
                     WaitClock clock = WaitClock::steady());
  ~DeviceCommunicator() override;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  int rank() const override { return control_.rank(); }
  int num_ranks() const override { return control_.num_ranks(); }
  int local_rank() const override { return control_.local_rank(); }
  std::string name() const override { return device_->name(); }
  std::optional<int> device_index() const override { return device_->index(); }
  void wait_for_device() override;
  void wait_until(const std::function<bool()>& is_done) override;

  void barrier() override { come_together(); }
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override;
  std::unique_ptr<DeviceGraph> make_graph() override;
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override;

  // For the exchange, which says what travels; the order of the queues is kept here. All local calls but
  // transfer_group().

  DeviceApi& device() { return *device_; }
  const DeviceSettings& settings() const { return settings_; }

  /// Throws once more what the network was given up for, if it was.
  void check() const;
  /// Begins an operation: what follows in the transfer queue waits for what the caller's queue holds now.
  void begin_operation(OperationKind kind);
  /// **Collective.** The transfers that `work` asks for, as one group.
  void transfer_group(const std::function<void(DeviceChannel&)>& work);
  /// Ends it: the mark that the caller and wait_for_device() wait for is in the transfer queue.
  void end_operation();
  /// What the caller's queue is given from now on waits for all operations that ended.
  void let_caller_wait();

  /// Waits until no transfer uses memory that is about to go, or gives the network up. Never throws.
  void finish() noexcept;

 private:
  void wait_for_connection();
  void come_together();
  [[noreturn]] void fail(const std::string& why);

  const MpiSession& session_;
  int uncaught_at_start_;
  std::thread::id owner_ = std::this_thread::get_id();
  DeviceSettings settings_;
  WaitClock clock_;
  MpiCommunicator control_;
  RollCall roll_call_;
  std::unique_ptr<DeviceApi> device_;
  std::unique_ptr<DeviceEvent> caller_came_;
  std::unique_ptr<DeviceEvent> transfers_ended_;
  std::unique_ptr<DeviceChannel> channel_;
  Operation operation_;
  bool is_busy_ = false;           ///< something was asked for and not yet seen done
  bool is_open_ = false;           ///< an operation began and did not end: nothing marks the end of what it asked for
  std::optional<Error> given_up_;  ///< why the network was given up
};

}  // namespace lockstep
