#pragma once

#include <functional>
#include <memory>

namespace lockstep {

/// Work of a device that is recorded once and then given to it again as a whole, which costs the host one call
/// instead of one for every kernel.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Calls `work` and records what it asks of the device, which does none of it; what `work` does on the host is
  /// done. Memory that it takes belongs to the graph. Throws what `work` throws, and where it asks for something
  /// that cannot be recorded (above all: waiting for the device); the graph is then of no use. Called once.
  virtual void record(const std::function<void()>& work) = 0;

  /// Gives the device what was recorded, in the order of the caller's stream.
  virtual void replay() = 0;
};

/// Makes an empty graph of the run's device; null where that is not possible.
using DeviceGraphMaker = std::function<std::unique_ptr<DeviceGraph>()>;

}  // namespace lockstep
