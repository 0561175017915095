#pragma once

#include <cstddef>
#include <vector>

#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/shared_barrier.hpp"
#include "runtime/comm/shared_segment.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// A flat state in memory that the ranks of a node share: one copy of the weights, and every rank's gradient slots.
///
/// reduce_slice() is a barrier, after which the owner of a slice reads its neighbours' gradients where they are;
/// publish_weights() is a barrier and nothing else. The pages of a rank's gradients and of its slice of the weights
/// are taken by that rank, so that they lie near its processor.
///
/// Construction is **collective** and throws the same Error on all ranks where there is no room. The communicator
/// and the barrier must outlive it.
class SharedExchange final : public FlatExchange {
 public:
  /// `num_slots`: the gradient slots of each rank. `communicator` is used for the set-up alone.
  SharedExchange(Communicator& communicator, SharedBarrier& barrier, const FlatLayout& layout,
                 std::vector<int> num_slots, std::size_t max_bytes);

  Slice slice() const override { return slice_; }
  std::byte* weights() override { return segment_.data(); }
  std::byte* gradient_slot(int slot) override { return slot_of(rank_, slot); }
  bool is_read_in_place() const override { return true; }

  void reduce_slice(const TreeProgram& program, std::byte* out) override;  ///< **collective**
  void publish_weights() override { barrier_.arrive_and_wait(); }          ///< **collective**

 private:
  std::byte* slot_of(std::size_t rank, int slot) const {
    return segment_.data() + buffer_bytes_ * (first_buffer_[rank] + static_cast<std::size_t>(slot));
  }

  SharedBarrier& barrier_;
  FlatLayout layout_;
  std::vector<int> num_slots_;
  std::size_t rank_;
  Slice slice_;
  std::size_t buffer_bytes_;
  std::vector<std::size_t> first_buffer_;  ///< of each rank's slots, and the end; buffer 0 holds the weights
  SharedSegment segment_;
};

}  // namespace lockstep
