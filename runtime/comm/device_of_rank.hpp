#pragma once

namespace lockstep {

/// What to do when a node has more ranks than devices that they can see.
enum class DeviceSharing { refused, allowed };

/// The index, among the devices that this rank sees, of the one it uses; -1 when it sees none: the CPU.
///
/// A launcher that gives each rank a device of its own shows it one: index 0 on every rank. Otherwise the ranks of a
/// node take one each, by node-local rank. Throws Error(usage) for more ranks than devices, unless sharing is
/// allowed.
int device_of_rank(int num_visible_devices, int local_rank, DeviceSharing sharing);

}  // namespace lockstep
