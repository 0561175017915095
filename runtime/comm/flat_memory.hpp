#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/aligned_buffer.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// The slice of the flat state that `rank` owns: whole blocks, dealt as share_of() deals.
Slice slice_of(const FlatLayout& layout, int num_ranks, int rank);

/// The elements of `slice` that travel in round `index`, when a round takes `max_elements`; none after the last.
Slice part_of(const Slice& slice, std::size_t index, std::int64_t max_elements);

/// The elements that two slices share; none, at the begin of `b`, where they share none.
Slice intersection(const Slice& a, const Slice& b);

/// Bytes of one flat buffer, rounded up to whole pages, so that each of a row of buffers starts on a page.
std::size_t buffer_bytes(const FlatLayout& layout);

/// **Collective.** The number of gradient slots of every rank. Throws std::logic_error, on all ranks, where the
/// layouts differ in anything else or are none that can be exchanged.
std::vector<int> gather_num_slots(Communicator& communicator, const FlatLayout& layout);

/// Throws std::logic_error, on all ranks, where a rank's nodes in `program` are more than its slots.
void check_program(const TreeProgram& program, const std::vector<int>& num_slots);

/// The memory of one rank that shares none: its weights and its gradient slots.
class PrivateFlatMemory {
 public:
  explicit PrivateFlatMemory(const FlatLayout& layout)
      : buffer_bytes_(buffer_bytes(layout)),
        memory_(buffer_bytes_ * (1 + static_cast<std::size_t>(layout.num_slots))) {}

  std::byte* weights() const { return memory_.data(); }
  std::byte* gradient_slot(int slot) const {
    return memory_.data() + buffer_bytes_ * (1 + static_cast<std::size_t>(slot));
  }

 private:
  std::size_t buffer_bytes_;
  AlignedBuffer memory_;
};

}  // namespace lockstep
