#include "runtime/comm/device_of_rank.hpp"

#include "runtime/plan/error.hpp"

namespace lockstep {

int device_of_rank(int num_visible_devices, int local_rank, DeviceSharing sharing) {
  if (num_visible_devices <= 0) return -1;
  if (num_visible_devices > 1 && local_rank >= num_visible_devices && sharing == DeviceSharing::refused) {
    throw Error(ErrorKind::usage,
                text("more ranks than devices on this node: local rank ", local_rank, " sees ", num_visible_devices,
                     " devices (each rank trains on one of its own): start at most ", num_visible_devices,
                     " ranks per node"));
  }
  return local_rank % num_visible_devices;
}

}  // namespace lockstep
