#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/train/flat_state.hpp"
#include "runtime/train/sharded_optimizer.hpp"

namespace lockstep {

/// This rank's slices of weights and moments in host memory, for those who read and write checkpoints.
///
/// For a state in host memory they are the live state itself, and nothing here has anything to do. For a state on a
/// device they are pinned copies, made when first wanted and then kept. State and optimizer must outlive it.
class HostSlices {
 public:
  HostSlices(FlatState& state, const ShardedOptimizer& optimizer) : state_(state), optimizer_(optimizer) {}

  /// Whether a change of the state leaves the slices as they are.
  bool are_copies() const { return !state_.device().is_cpu(); }

  /// Begins to bring the state as the device's work so far leaves it, on a stream of its own. What the slices held
  /// must not be wanted any more.
  void start_fetch();

  /// Waits for the newest fetch, in any thread, also after this object has gone. Throws where the device has failed.
  std::function<void()> wait_for_fetch() const;

  /// Work that the calling thread gives the device from here on begins when the newest fetch is over: to be called
  /// before what changes the state. Does not wait itself.
  void put_changes_after_fetch() const;

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
  std::shared_ptr<c10::Event> fetched_;   ///< after the newest fetch; null for host memory
};

}  // namespace lockstep
