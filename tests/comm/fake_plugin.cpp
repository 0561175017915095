// A plug-in for tests of the door between it and the program: its device says why it cannot be used.

#include <memory>

#include "runtime/comm/device_plugin.hpp"
#include "runtime/plan/error.hpp"

extern "C" const lockstep::DevicePluginTable* lockstep_device_plugin() {
  static const lockstep::DevicePluginTable table = {
      FAKE_PLUGIN_BUILD, 13000, [](int index) -> std::unique_ptr<lockstep::DeviceApi> {
        throw lockstep::Error(lockstep::ErrorKind::failed, lockstep::text("device ", index, " is a fake"));
      }};
  return &table;
}
