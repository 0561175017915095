#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/plan/device_graph.hpp"
#include "runtime/plan/element_type.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// The two queues of work that an exchange keeps in order on a device. Each runs what it is given one after the
/// other.
enum class DeviceQueue {
  caller,   ///< the stream on which the calling thread puts its own work
  transfer  ///< a stream of the device's own, for everything that a DeviceChannel and evaluate_tree() do
};

/// A mark in a queue. Made by a DeviceApi, which must outlive it.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

enum class ChannelState {
  ready,    ///< what was asked for is in the queue
  working,  ///< still connecting, or still putting into the queue: give it nothing before it is ready
  failed    ///< only abort() is left
};

/// The network between the devices of all ranks, seen from one of them.
///
/// Transfers are put into the transfer queue and return at once; pointers are the device's, counts are elements. All
/// calls but state(), problem() and abort() are **collective**: every rank makes matching calls in the same order,
/// and puts them between begin_group() and end_group(), after which state() must be asked until it is `ready`. The
/// destructor closes the channel, together with the other ranks, or gives up where they do not come.
class DeviceChannel {
 public:
  virtual ~DeviceChannel() = default;

  virtual ChannelState state() = 0;
  virtual std::string problem() = 0;  ///< in words, once the state is `failed`
  virtual void abort() noexcept = 0;  ///< ends what hangs on this rank; the last call, which may be repeated

  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  virtual void send(const std::byte* from, std::int64_t count, ElementType type, int rank) = 0;
  virtual void receive(std::byte* into, std::int64_t count, ElementType type, int rank) = 0;
  /// The sum over all ranks' `from`, in any order, into `into` of rank `root` (null elsewhere).
  virtual void reduce(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) = 0;
  /// As reduce() of part r of `from` (`count` elements each) to each rank r.
  virtual void reduce_scatter(const std::byte* from, std::byte* into, std::int64_t count, ElementType type) = 0;
  virtual void broadcast(std::byte* in_place, std::int64_t count, ElementType type, int root) = 0;
  /// Every rank's `count` elements, in rank order, into `all`; this rank's are in their place already.
  virtual void all_gather(std::byte* all, std::int64_t count, ElementType type) = 0;
};

/// One device, as much of it as exchanges need: CUDA with NCCL (runtime/cuda), or a fake in a test.
///
/// The seam below the exchange's logic: no header of CUDA is needed above it, so that the logic is tested without a
/// device. Any thread may call, one at a time. Failures of the device throw Error.
class DeviceApi {
 public:
  using ChannelId = std::array<std::byte, 128>;

  virtual ~DeviceApi() = default;

  virtual int index() const = 0;             ///< among the devices that this process sees
  virtual std::string name() const = 0;      ///< for the log: "CUDA, NCCL 2.28.9, NVIDIA H100"
  virtual std::string identity() const = 0;  ///< the same text is the same device, on whatever rank

  /// Memory of the device, zero, on a 256-byte boundary. Waits for the device; never called in a step.
  virtual std::byte* allocate(std::size_t num_bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;

  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  virtual void record(DeviceEvent& event, DeviceQueue queue) = 0;  ///< the mark goes to the queue's end
  virtual void wait(DeviceQueue queue, DeviceEvent& event) = 0;    ///< `queue` goes on after the mark as it lies now
  virtual bool is_done(DeviceEvent& event) = 0;                    ///< whether the mark was passed

  /// Runs `program` elementwise in the transfer queue, as evaluate_tree() of tree_kernel.hpp does on the host and
  /// with the same bits. `out` may be one of the inputs. What the arguments refer to need not outlive the call.
  virtual void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                             std::int64_t num_elements, std::byte* out) = 0;

  /// An empty graph for the caller's work; null where the device has none.
  virtual std::unique_ptr<DeviceGraph> make_graph() { return nullptr; }

  virtual ChannelId make_channel_id() = 0;  ///< on one rank, for all
  /// Begins to connect the ranks; the channel's state tells when it is done. The device must outlive the channel.
  virtual std::unique_ptr<DeviceChannel> connect(const ChannelId& id, int num_ranks, int rank) = 0;
};

/// Memory of a device, zero at first. A value that is moved, never copied; the device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer(DeviceApi& device, std::size_t num_bytes)
      : memory_(num_bytes == 0 ? nullptr : device.allocate(num_bytes), Release{&device}) {}

  std::byte* data() const { return memory_.get(); }

 private:
  struct Release {
    DeviceApi* device;
    void operator()(std::byte* memory) const { device->release(memory); }
  };
  std::unique_ptr<std::byte, Release> memory_;
};

}  // namespace lockstep
