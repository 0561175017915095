#pragma once

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/aligned_buffer.hpp"
#include "runtime/comm/device_api.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/comm/roll_call.hpp"

namespace lockstep::test {

/// When a fake device does what its queues hold. The first two do nothing before they are asked whether they are
/// done, and then the one queue runs ahead as far as the events allow: work that is not ordered comes too early or
/// too late.
enum class Pace {
  transfers_first,
  caller_first,
  at_once  ///< whenever the caller's queue is made to wait: what a call asked for is there when it returns
};

/// A device in host memory that only its queues tell from a real one. Transfers really happen, as messages of MPI,
/// when their turn in the queue comes. Everything asked for is written down.
class FakeDevice final : public DeviceApi {
 public:
  /// **Collective**, as is destruction.
  FakeDevice(const MpiSession& session, Pace pace);
  ~FakeDevice() override;

  // What a test does to it.
  void run_on_caller(std::function<void()> work);  ///< puts work of the caller into its queue
  void synchronize();                              ///< runs both queues to their ends
  bool is_stalled = false;                         ///< the transfer queue stands still
  int num_working_polls = 0;                       ///< after each group and connect, state() says `working` so often
  std::string failure;                             ///< not empty: the network has failed
  std::string identity_text;                       ///< empty: one that no other rank has
  std::vector<std::string> log;                    ///< "caller records", "transfer waits", "group: send 1", "tree 3"
  bool was_released_busy = false;                  ///< memory went while work was left
  bool was_aborted = false;

  int index() const override { return 0; }
  std::string name() const override { return "fake device"; }
  std::string identity() const override;
  std::byte* allocate(std::size_t num_bytes) override;
  void release(std::byte* memory) noexcept override;
  std::unique_ptr<DeviceEvent> make_event() override;
  void record(DeviceEvent& event, DeviceQueue queue) override;
  void wait(DeviceQueue queue, DeviceEvent& event) override;
  bool is_done(DeviceEvent& event) override;
  void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                     std::int64_t num_elements, std::byte* out) override;
  ChannelId make_channel_id() override { return {std::byte{42}}; }
  std::unique_ptr<DeviceChannel> connect(const ChannelId& id, int num_ranks, int rank) override;

 private:
  friend class FakeChannel;
  using Work = std::function<bool()>;  ///< true once done

  std::deque<Work>& queue_of(DeviceQueue queue) { return queue == DeviceQueue::caller ? caller_ : transfer_; }
  bool advance(DeviceQueue queue);  ///< one piece of work; false: none can be done now
  void progress();

  int rank_;
  Pace pace_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Work> caller_;
  std::deque<Work> transfer_;
  std::map<std::byte*, AlignedBuffer> memory_;
};

/// A clock that, from when `hurries` is true, is far ahead of the real time after each sleep: a wait of a minute is
/// over in a second.
WaitClock hurried_clock(std::shared_ptr<const bool> hurries);

}  // namespace lockstep::test
