#include "runtime/comm/device_driver.hpp"

#include <dlfcn.h>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr int error_no_device = 100;  // CUDA_ERROR_NO_DEVICE

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

DriverReport ask_device_driver(const std::string& library) {
  DriverReport report;
  // Never unloaded: a driver that has started stays.
  void* driver = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    report.why_no_device = text("there is no NVIDIA driver on this machine (", library, " is not found)");
    return report;
  }
  auto* const initialize = find<int(unsigned)>(driver, "cuInit");
  auto* const get_version = find<int(int*)>(driver, "cuDriverGetVersion");
  auto* const get_count = find<int(int*)>(driver, "cuDeviceGetCount");
  if (initialize == nullptr || get_version == nullptr || get_count == nullptr) {
    report.why_no_device = text(library, " is not a driver of NVIDIA's devices");
    return report;
  }
  get_version(&report.cuda_version);
  int error = initialize(0);
  if (error == 0) error = get_count(&report.num_devices);
  if (error != 0 && error != error_no_device) {
    report.num_devices = 0;
    report.why_no_device = text("the NVIDIA driver does not start (error ", error, "; nvidia-smi may tell more)");
  } else if (error != 0 || report.num_devices == 0) {
    report.num_devices = 0;
    report.why_no_device = "the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES, or the job asked for none)";
  }
  return report;
}

void check_driver_version(int driver_version, int built_version) {
  // A driver runs everything of its own major version.
  if (driver_version / 1000 >= built_version / 1000) return;
  const auto spelled = [](int version) { return text(version / 1000, ".", version % 1000 / 10); };
  throw Error(ErrorKind::usage, text("the NVIDIA driver is too old (it runs CUDA ", spelled(driver_version),
                                     ", this program was built for CUDA ", spelled(built_version),
                                     "): update the driver, build with an older toolkit and LibTorch, or train with "
                                     "--device cpu"));
}

}  // namespace lockstep
