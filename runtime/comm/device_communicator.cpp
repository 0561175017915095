#include "runtime/comm/device_communicator.hpp"

#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "runtime/comm/device_exchange.hpp"
#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/mpi_error.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr double roll_call_seconds = 10.0;
constexpr double unwinding_seconds = 5.0;

// Most steps are shorter than this: a sleep would be felt in them. Whoever waits longer gives its core away, and then
// also looks for ranks that have given up.
constexpr double asking_seconds = 50e-3;
constexpr double sleep_seconds = 1e-4;
constexpr double patient_seconds = 0.1;

/// Two ranks on one device would hang in the network's first transfer.
void refuse_shared_devices(Communicator& control, const DeviceApi& device) {
  std::map<std::string, std::vector<int>> ranks_of_device;
  const std::vector<std::string> identities = gather_texts(control, device.identity());
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    ranks_of_device[identities[rank]].push_back(static_cast<int>(rank));
  }
  for (const auto& [identity, ranks] : ranks_of_device) {
    if (ranks.size() == 1) continue;
    throw Error(
        ErrorKind::usage,
        text(name_ranks(ranks), " have the same device, ", identity,
             " (each rank trains on one of its own): start one rank for each device, and see that the "
             "launcher shows all devices of a node to all of its ranks (srun --gpu-bind=none), or each another"));
  }
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(const MpiSession& session, std::unique_ptr<DeviceApi> device,
                                       const DeviceSettings& settings, WaitClock clock)
    : session_(session),
      uncaught_at_start_(std::uncaught_exceptions()),
      settings_(settings),
      clock_(std::move(clock)),
      control_(session),
      roll_call_(control_.comm()),
      device_(std::move(device)) {
  refuse_shared_devices(control_, *device_);
  DeviceApi::ChannelId id = {};
  agree(control_, [&] {
    caller_came_ = device_->make_event();
    transfers_ended_ = device_->make_event();
    if (rank() == 0) id = device_->make_channel_id();
  });
  control_.broadcast(id, 0);
  // A rank whose connections fail or take too long is named by the others here: no roll call is needed.
  try {
    agree(control_, [&] {
      channel_ = device_->connect(id, num_ranks(), rank());
      wait_for_connection();
    });
  } catch (const Error&) {
    if (channel_) channel_->abort();
    throw;
  }
}

DeviceCommunicator::~DeviceCommunicator() {
  finish();
  // The other ranks do not come to close the channel when this one unwinds.
  if (std::uncaught_exceptions() > uncaught_at_start_ && !given_up_) channel_->abort();
  if (given_up_) control_.abandon();
}

void DeviceCommunicator::wait_for_device() {
  check();
  if (!is_busy_) return;
  wait_until([&] { return device_->is_done(*transfers_ended_); });
  is_busy_ = false;
}

void DeviceCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  come_together();
  control_.broadcast(bytes, root);
}

void DeviceCommunicator::all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                                    std::span<std::byte> all) {
  come_together();
  control_.all_gather(mine, counts, all);
}

/// A collective call of MPI cannot be left: it is made when it is sure that all ranks make it.
void DeviceCommunicator::come_together() {
  check();
  operation_ = {operation_.number + 1, OperationKind::agree};
  MPI_Request all_came = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(control_.comm(), &all_came), "MPI_Ibarrier");
  wait_until([&] {
    int came = 0;
    check_mpi(MPI_Test(&all_came, &came, MPI_STATUS_IGNORE), "MPI_Test");
    return came != 0;
  });
  // The others were here, but may have given up before this rank came.
  if (roll_call_.is_called()) fail("another rank has given up waiting");
}

std::unique_ptr<FlatExchange> DeviceCommunicator::make_exchange(const FlatLayout& layout) {
  const std::vector<int> num_slots = gather_num_slots(*this, layout);
  std::unique_ptr<FlatExchange> exchange;
  agree(*this, [&] { exchange = std::make_unique<DeviceExchange>(*this, layout, num_slots); });
  return exchange;
}

std::unique_ptr<DeviceGraph> DeviceCommunicator::make_graph() {
  wait_for_device();  // a graph begins on a device at rest: here, where a rank that does not come is noticed
  return device_->make_graph();
}

void DeviceCommunicator::check() const {
  if (given_up_) throw *given_up_;
}

void DeviceCommunicator::begin_operation(OperationKind kind) {
  check();
  operation_ = {operation_.number + 1, kind};
  is_busy_ = true;
  is_open_ = true;
  device_->record(*caller_came_, DeviceQueue::caller);
  device_->wait(DeviceQueue::transfer, *caller_came_);
}

void DeviceCommunicator::transfer_group(const std::function<void(DeviceChannel&)>& work) {
  channel_->begin_group();
  try {
    work(*channel_);
  } catch (...) {
    try {
      channel_->end_group();  // in an open group nothing could be aborted
    } catch (const Error&) {  // the first one tells more
    }
    throw;
  }
  channel_->end_group();
  wait_until([&] { return channel_->state() == ChannelState::ready; });
}

void DeviceCommunicator::end_operation() {
  device_->record(*transfers_ended_, DeviceQueue::transfer);
  is_open_ = false;
}

void DeviceCommunicator::let_caller_wait() { device_->wait(DeviceQueue::caller, *transfers_ended_); }

void DeviceCommunicator::finish() noexcept {
  if (!is_busy_ || given_up_) return;
  const bool unwinds = std::uncaught_exceptions() > uncaught_at_start_;
  const double most_seconds = unwinds ? unwinding_seconds : settings_.timeout_seconds;
  try {
    const double start = clock_.seconds();
    const auto may_wait = [&] {
      return channel_->state() != ChannelState::failed &&
             (most_seconds <= 0.0 || clock_.seconds() - start <= most_seconds);
    };
    while (!is_open_ && !device_->is_done(*transfers_ended_) && may_wait()) clock_.sleep(sleep_seconds);
    is_busy_ = is_open_ || !device_->is_done(*transfers_ended_);
  } catch (const Error&) {
    is_busy_ = true;  // the device itself has failed
  }
  if (!is_busy_) return;
  given_up_.emplace(ErrorKind::failed, "the devices' exchange was broken off: start the run again");
  channel_->abort();
}

void DeviceCommunicator::wait_for_connection() {
  const double start = clock_.seconds();
  while (channel_->state() == ChannelState::working) {
    if (settings_.timeout_seconds > 0.0 && clock_.seconds() - start > settings_.timeout_seconds) break;
    clock_.sleep(sleep_seconds);
  }
  const ChannelState state = channel_->state();
  if (state == ChannelState::ready) return;
  const std::string why = state == ChannelState::failed
                              ? channel_->problem()
                              : text("it took more than ", settings_.timeout_seconds, " s, --communication-timeout");
  throw Error(ErrorKind::failed, text("the devices of the ranks could not be connected (", why,
                                      "): set NCCL_DEBUG=INFO to see which network is tried, and NCCL_SOCKET_IFNAME "
                                      "to the one that joins the nodes"));
}

void DeviceCommunicator::wait_until(const std::function<bool()>& is_done) {
  check();
  const double start = clock_.seconds();
  while (!is_done()) {
    const double waited = clock_.seconds() - start;
    if (channel_->state() == ChannelState::failed) fail(text("the network failed: ", channel_->problem()));
    if (settings_.timeout_seconds > 0.0 && waited > settings_.timeout_seconds) {
      fail(text("not done within ", settings_.timeout_seconds, " s, --communication-timeout"));
    }
    const bool may_communicate = session_.any_thread_may_communicate() || std::this_thread::get_id() == owner_;
    if (waited > patient_seconds && may_communicate && roll_call_.is_called()) {
      fail("another rank has given up waiting");
    }
    if (waited > asking_seconds) {
      clock_.sleep(sleep_seconds);
    } else {
      std::this_thread::yield();
    }
  }
}

void DeviceCommunicator::fail(const std::string& why) {
  std::string what = text(name_of(operation_), " did not end");
  if (session_.any_thread_may_communicate() || std::this_thread::get_id() == owner_) {
    const std::string absence = describe_absence(roll_call_.hold(operation_, roll_call_seconds, clock_), operation_);
    what = absence.empty() ? text("all ranks came to ", name_of(operation_), ", which did not end") : absence;
  }
  given_up_.emplace(ErrorKind::failed,
                    text(what, " (", why,
                         "): look at what the ranks that are missing wrote last and at their nodes, set "
                         "NCCL_DEBUG=INFO where none is missing, and start the run again"));
  channel_->abort();
  throw *given_up_;
}

}  // namespace lockstep
