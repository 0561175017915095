#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/device_graph.hpp"
#include "runtime/plan/element_type.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// The shape of a flat state: all trainable tensors of one element type, one after the other.
struct FlatLayout {
  ElementType type = ElementType::float32;  ///< float32 or float64
  std::int64_t num_blocks = 0;              ///< the buffer holds num_blocks x block_elements elements
  std::int64_t block_elements = 1024;       ///< slices are cut at multiples of this; a multiple of 64 bytes
  int num_slots = 1;                        ///< gradient buffers a rank needs (TreeAccumulator::num_slots)

  std::int64_t num_elements() const { return num_blocks * block_elements; }
};

/// The elements [begin, end) of the flat state that a rank owns: whole blocks, dealt as share_of() deals.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// The memory of a flat state and the two moves of a step: gradients in, weights out.
///
/// Every buffer starts on a 64-byte boundary, the same on every rank. With shared memory the weights exist once
/// per node: they are for reading, except that each rank writes its own slice between reduce_slice() and
/// publish_weights().
///
/// On a device (Communicator::device_index()) all pointers are the device's, and the calls return before the work is
/// done: it is ordered after what the caller's stream held before the call, and before what it is given afterwards.
class FlatExchange {
 public:
  virtual ~FlatExchange() = default;

  virtual Slice slice() const = 0;

  /// The whole flat weights.
  virtual std::byte* weights() = 0;

  /// This rank's gradient buffer `slot`, whole and flat. Zero at first.
  virtual std::byte* gradient_slot(int slot) = 0;

  /// Whether the other ranks read this rank's slice of the weights and its slots where they lie. Local call.
  virtual bool is_read_in_place() const { return false; }

  /// Whether transfers that start early run beside the caller's work. Local call.
  virtual bool overlaps() const { return false; }

  /// **Collective.** The elements `range` of this rank's slots are as reduce_slice() will want them: their transfer
  /// may start. Between two calls of reduce_slice() all ranks start the same ranges in the same order, with that
  /// call's `program` and `out`; the ranges overlap nowhere and cover the flat state together, or there are none. May
  /// be called from a thread of the backward pass, never by two threads at once.
  virtual void start_reduce(const TreeProgram& /*program*/, Slice /*range*/, std::byte* /*out*/) {}

  /// **Collective.** Adds up this rank's slice over the gradient slots of all ranks, in the order of `program`
  /// (rank r brings its slots 0..nodes_of_rank[r]-1), into `out` (slice().size() elements). The slots may be
  /// written again after the next collective call of the communicator. Where is_read_in_place(), `out` may be this
  /// rank's slice within its slot 0, which no other rank reads.
  virtual void reduce_slice(const TreeProgram& program, std::byte* out) = 0;

  /// **Collective.** After it every rank sees every slice of the weights.
  virtual void publish_weights() = 0;
};

/// The ranks of a run, seen from one of them. Implementations: one process, MPI, shared memory on one node, NCCL.
///
/// All calls are **collective** unless said otherwise: every rank makes the same calls in the same order. A failed
/// transfer throws Error. The object must outlive everything made from it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;          ///< local call
  virtual int num_ranks() const = 0;     ///< local call
  virtual int local_rank() const = 0;    ///< rank among those of this node; local call
  virtual std::string name() const = 0;  ///< "one process", "MPI", "shared memory"; local call

  /// The index, among the CUDA devices that this process sees, of the one whose memory exchanges live in; none: they
  /// live in host memory. Local call.
  virtual std::optional<int> device_index() const { return std::nullopt; }

  /// Waits until the device has done what exchanges were asked for; at once where there is no device. Throws Error
  /// when a rank did not come in time, or the network failed. Local call.
  virtual void wait_for_device() {}

  /// Waits until `is_done`, which asks the device, says so. Throws as wait_for_device(). Local call.
  virtual void wait_until(const std::function<bool()>& is_done);

  virtual void barrier() = 0;

  /// Copies `bytes` of rank `root` to all ranks.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;

  /// Rank r brings counts[r] bytes; `all` receives them in rank order. `counts` is the same on all ranks.
  virtual void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                          std::span<std::byte> all) = 0;

  /// An empty graph of the device; null where there is no device, or it has none. Local call.
  virtual std::unique_ptr<DeviceGraph> make_graph() { return nullptr; }

  /// Makes the memory of a flat state.
  virtual std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) = 0;
};

/// **Collective.** Every rank's text, in rank order.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine);

/// **Collective.** The text of rank `root`, on all ranks.
std::string broadcast_text(Communicator& communicator, const std::string& mine, int root = 0);

/// "rank 3", "ranks 0, 2, 5". Local call.
std::string name_ranks(const std::vector<int>& ranks);

/// **Collective.** Runs `work` on this rank and waits for all: when it threw on any rank, all ranks throw one Error
/// that carries the texts of the failing ranks and the gravest of their kinds. Use it around work that may fail on
/// one rank alone (files, memory); `work` itself must not communicate.
void agree(Communicator& communicator, const std::function<void()>& work);

}  // namespace lockstep
