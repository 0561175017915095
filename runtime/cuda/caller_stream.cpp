#include "runtime/cuda/caller_stream.hpp"

#include <c10/cuda/CUDAStream.h>

namespace lockstep {

cudaStream_t caller_stream(int device_index) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_index)).stream();
}

}  // namespace lockstep
