#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/device_api.hpp"
#include "runtime/comm/device_communicator.hpp"
#include "runtime/comm/flat_memory.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// A flat state in the memory of each rank's device.
///
/// In exact order every rank sends the pieces of its nodes to the owners of the slices, and these add them up as the
/// tree says: the bits of every other exchange. Pieces travel in rounds that fit the staging memory. In fast order a
/// rank adds up its own nodes, which leaves the sum in its slot 0, and the network does the rest.
///
/// All calls return before the work is done. What they read and write is safe from the caller's queue on both sides:
/// slots, `out` and weights may be used again by what that queue is given after reduce_slice() and publish_weights().
///
/// Destruction waits for the device. The communicator must outlive it.
class DeviceExchange final : public FlatExchange {
 public:
  /// `num_slots`: the gradient slots of each rank.
  DeviceExchange(DeviceCommunicator& communicator, const FlatLayout& layout, std::vector<int> num_slots);
  ~DeviceExchange() override;
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  Slice slice() const override { return slice_; }
  std::byte* weights() override { return memory_.data(); }
  std::byte* gradient_slot(int slot) override {
    return memory_.data() + buffer_bytes_ * (1 + static_cast<std::size_t>(slot));
  }
  bool overlaps() const override { return true; }

  void start_reduce(const TreeProgram& program, Slice range, std::byte* out) override;  ///< **collective**
  void reduce_slice(const TreeProgram& program, std::byte* out) override;               ///< **collective**
  void publish_weights() override;                                                      ///< **collective**

 private:
  void reduce_exactly(const TreeProgram& program, Slice range, std::byte* out);
  void reduce_fast(const TreeProgram& program, Slice range, std::byte* out);

  /// The elements of the slice that `rank` owns within `range`.
  Slice owned(int rank, Slice range) const {
    return intersection(range, slice_of(layout_, communicator_.num_ranks(), rank));
  }
  bool slices_are_equal() const { return layout_.num_blocks % communicator_.num_ranks() == 0; }
  std::byte* element(std::byte* buffer, std::int64_t index) const {
    return buffer + index * static_cast<std::int64_t>(size_of(layout_.type));
  }

  DeviceCommunicator& communicator_;
  FlatLayout layout_;
  std::vector<int> num_slots_;
  Slice slice_;
  std::size_t buffer_bytes_;
  DeviceBuffer memory_;                ///< the weights, and at least one slot
  DeviceBuffer staging_;               ///< what others send, in exact order
  std::int64_t started_elements_ = 0;  ///< of the flat state, since the last reduce_slice()
};

}  // namespace lockstep
