#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/snapshot.hpp"
#include "runtime/train/flat_state.hpp"
#include "runtime/train/host_slices.hpp"
#include "runtime/train/sharded_optimizer.hpp"

namespace lockstep {

/// The tensors of a run as this rank's parts: "weights", "buffers" and "optimizer/<moment>", in the order of the flat
/// state. The parts point into `slices`.
std::vector<TensorPart> state_parts(FlatState& state, const ShardedOptimizer& optimizer, HostSlices& slices,
                                    const Communicator& communicator);

/// The further names of tied tensors.
std::vector<TensorAlias> state_aliases(const FlatState& state);

/// What an optimizer's group says about parameters whose number of updates differs from the run's.
void store_updates(const FlatState& state, std::int64_t steps_applied, AttributeGroup& group);

/// **Collective.** Fills state and moments from a checkpoint, on any number of ranks. Throws Error, before anything
/// changes, listing every name, shape and type that differs.
void restore_state(CheckpointReader& reader, FlatState& state, ShardedOptimizer& optimizer, HostSlices& slices,
                   Communicator& communicator);

/// What `load_weights` accepts.
struct WeightsMatch {
  bool allow_missing = false;     ///< tensors of the model that the file does not have keep their values
  bool allow_unexpected = false;  ///< tensors of the file that the model does not have are passed over
};

/// **Collective.** Weights and buffers only, into a plain module: a new run that starts from a checkpoint's weights.
/// Throws Error listing what differs. Returns the names that were passed over.
std::vector<std::string> load_weights(CheckpointReader& reader, torch::nn::Module& module, const WeightsMatch& match);

}  // namespace lockstep
