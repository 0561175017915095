#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "runtime/train/flat_state.hpp"
#include "runtime/train/sharded_optimizer.hpp"

namespace lockstep {

/// This rank's slices of weights and moments in host memory, for those who read and write checkpoints.
///
/// For a state in host memory they are the live state itself, and fetch() and store() have nothing to do. For a state
/// on a device they are pinned copies, made when first wanted and then kept. State and optimizer must outlive it.
class HostSlices {
 public:
  HostSlices(FlatState& state, const ShardedOptimizer& optimizer) : state_(state), optimizer_(optimizer) {}

  /// Brings the state as the device's work so far leaves it, on a stream of its own; returns when it is here.
  void fetch();

  /// Makes the state what the slices hold.
  void store();

  at::Tensor weights(std::size_t group) { return pairs()[group].front().on_host; }
  at::Tensor moment(std::size_t group, std::size_t index) { return pairs()[group][index + 1].on_host; }

 private:
  struct Pair {
    at::Tensor live;
    at::Tensor on_host;
  };
  std::vector<std::vector<Pair>>& pairs();

  FlatState& state_;
  const ShardedOptimizer& optimizer_;
  std::vector<std::vector<Pair>> pairs_;  ///< per group: weights, then moments
};

}  // namespace lockstep
