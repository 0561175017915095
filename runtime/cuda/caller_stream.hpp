#pragma once

#include <cuda_runtime_api.h>

namespace lockstep {

/// LibTorch's current stream on this device and thread: where the caller's own work goes. The one place that needs a
/// header of LibTorch.
cudaStream_t caller_stream(int device_index);

}  // namespace lockstep
