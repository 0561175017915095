#pragma once

#include <memory>

#include "runtime/plan/device_graph.hpp"

namespace lockstep {

/// A CUDA graph of the current device, recorded by LibTorch: its allocator gives the graph memory of its own, and its
/// random numbers follow the generator's seed at every replay. Where recording fails, graphs that were recorded
/// before must not be replayed any more: they hold on to the generator's former state.
std::unique_ptr<DeviceGraph> make_cuda_graph();

}  // namespace lockstep
