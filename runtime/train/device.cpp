#include "runtime/train/device.hpp"

#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/plan/error.hpp"

namespace lockstep {

c10::Device device_of(const Communicator& communicator) {
  const std::optional<int> index = communicator.device_index();
  if (!index) return c10::Device(c10::kCPU);
  if (!at::hasCUDA())
    throw Error(ErrorKind::usage,
                "LibTorch does not know its CUDA half (it looks for it once, when it is first used, and the "
                "communicator of a device had not loaded it yet): make the communicator before the model, and before "
                "anything is seeded");
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(*index));
}

BatchMover::BatchMover(c10::Device device) : device_(device) {
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

Batch BatchMover::move(const Batch& batch) const {
  if (!stream_) return batch;
  const c10::Stream callers = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  c10::Event moved(device_.type());
  const auto start = [&](const at::Tensor& tensor) {
    const at::Tensor source = tensor.is_cpu() ? tensor.pin_memory() : tensor;
    const at::Tensor target = source.to(device_, /*non_blocking=*/true);
    // Its memory came from this stream; it is used, and freed, on the caller's.
    target.record_stream(callers);
    return target;
  };
  Batch on_device;
  {
    const c10::StreamGuard guard(*stream_);
    on_device = {start(batch.inputs), start(batch.targets)};
    moved.record(*stream_);
  }
  moved.block(callers);
  return on_device;
}

}  // namespace lockstep
