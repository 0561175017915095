#pragma once

#include <string>

namespace lockstep {

/// What the driver of NVIDIA's devices says of this machine.
struct DriverReport {
  int num_devices = 0;        ///< that this process sees (CUDA_VISIBLE_DEVICES, the job's share)
  int cuda_version = 0;       ///< the newest that the driver can run: 13000 is CUDA 13.0; 0 without a driver
  std::string why_no_device;  ///< empty where there is one
};

/// Asks the driver itself, without any part of the CUDA toolkit: takes no time where there is no driver, so that a
/// program may ask before it loads the libraries of a device. Local call; `library` is another one in tests.
DriverReport ask_device_driver(const std::string& library = "libcuda.so.1");

/// Throws Error(usage) where a driver for `driver_version` cannot run what was built for CUDA `built_version`.
void check_driver_version(int driver_version, int built_version);

}  // namespace lockstep
