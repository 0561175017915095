#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

#include "runtime/plan/communicator.hpp"
#include "runtime/train/dataset.hpp"

namespace lockstep {

/// Where a run's tensors live: the device of the communicator's exchanges, or host memory.
///
/// Devices are reached through LibTorch's general interfaces alone, so that this library needs no CUDA: whoever makes
/// a communicator of a device has loaded LibTorch's part for it before. That must have been before LibTorch was first
/// asked about CUDA, which seeding does: throws Error(usage) where it was too late.
c10::Device device_of(const Communicator& communicator);

/// Brings batches to a device while it computes: through pinned memory, on a stream of its own, before which the
/// device's work of the caller does not wait and after which it does. For the host it gives batches back as they are.
class BatchMover {
 public:
  explicit BatchMover(c10::Device device);

  Batch move(const Batch& batch) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace lockstep
