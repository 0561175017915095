// The one door of liblockstep_cuda.so (see runtime/comm/device_plugin.hpp).

#include <cuda_runtime_api.h>

#include <memory>

#include "runtime/comm/device_plugin.hpp"
#include "runtime/cuda/cuda_device.hpp"

extern "C" const lockstep::DevicePluginTable* lockstep_device_plugin() {
  static const lockstep::DevicePluginTable table = {LOCKSTEP_DEVICE_BUILD, CUDART_VERSION,
                                                    [](int index) -> std::unique_ptr<lockstep::DeviceApi> {
                                                      return std::make_unique<lockstep::CudaDevice>(index);
                                                    }};
  return &table;
}
