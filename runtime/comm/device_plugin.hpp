#pragma once

#include <memory>
#include <string>

#include "runtime/comm/device_api.hpp"

namespace lockstep {

/// What a plug-in of a device shows to the program that loads it, through one C function:
///
///   extern "C" const lockstep::DevicePluginTable* lockstep_device_plugin();
///
/// Nothing but `build` may be read before it is known to be the program's own (LOCKSTEP_DEVICE_BUILD, from CMake):
/// the two share C++ types, so both must come from one build.
struct DevicePluginTable {
  const char* build;
  int cuda_version;                                      ///< that it was built for: 13000 is CUDA 13.0
  std::unique_ptr<DeviceApi> (*make_device)(int index);  ///< throws Error
};

/// The part of the program that needs CUDA and NCCL: liblockstep_cuda.so, loaded only where a device is used.
///
/// A plug-in and not a second program: there is one lockstep-train to build, to test and to name in job scripts, and
/// it starts without any CUDA library, which would cost a CPU run seconds and most of its memory. Loading it also
/// makes LibTorch's CUDA kernels known. It is never unloaded.
class DevicePlugin {
 public:
  /// Loads `path`; empty: LOCKSTEP_CUDA_PLUGIN if that is set, else beside the program, else where the loader looks.
  /// Throws Error(usage) where it is not found, does not load, or belongs to another build. Local call.
  static DevicePlugin load(const std::string& path = {});

  /// Whether this build made one, or LOCKSTEP_CUDA_PLUGIN names one. Local call.
  static bool is_expected();

  int cuda_version() const { return table_->cuda_version; }

  /// The device `index` of those that this process sees. Throws Error.
  std::unique_ptr<DeviceApi> make_device(int index) const { return table_->make_device(index); }

 private:
  explicit DevicePlugin(const DevicePluginTable* table) : table_(table) {}

  const DevicePluginTable* table_;
};

}  // namespace lockstep
