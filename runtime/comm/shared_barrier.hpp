#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace lockstep {

/// A barrier of processes over 64-byte aligned memory that they share and that is zero at first.
///
/// What a rank wrote before the barrier, every rank sees after it. A rank that waits watches for about a millisecond
/// where there is a processor for each rank, giving way now and then, and then sleeps: waiting for a long checkpoint
/// burns no core.
/// The memory must outlive the object; all ranks give the same `num_ranks`.
class SharedBarrier {
 public:
  /// What lies in the shared memory. Each word has a cache line of its own.
  struct State {
    alignas(64) std::atomic<std::uint32_t> num_arrived;
    alignas(64) std::atomic<std::uint32_t> generation;
    alignas(64) std::atomic<std::uint32_t> num_sleeping;
  };

  /// `num_processors`: those that the ranks may use together. `while_waiting` is called from time to time by a rank
  /// that sleeps.
  SharedBarrier(std::byte* shared_memory, int num_ranks, int num_processors, std::function<void()> while_waiting);

  void arrive_and_wait();  ///< **collective**

 private:
  void wait_while(std::uint32_t generation) const;

  State& state_;
  std::uint32_t num_ranks_;
  int num_spins_;
  std::function<void()> while_waiting_;
};

}  // namespace lockstep
