#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/device_graph.hpp"
#include "runtime/train/dataset.hpp"
#include "runtime/train/flat_state.hpp"
#include "runtime/train/loss.hpp"

namespace lockstep {

/// The forward and backward pass of a full micro-batch as one graph of the device, for models whose many small
/// kernels take the host longer to launch than the device to run.
///
/// The first few micro-batches run as they are (libraries set themselves up), the next one is recorded. Batches of
/// another shape are not for the graph. Where recording fails, the reason is told once and everything runs as it is
/// from then on. What the passes read from the host (a counter's value, the learning rate) stays as it was when they
/// were recorded. Local; the state must outlive it.
class MicroBatchGraph {
 public:
  /// Forward and backward pass of a batch. `factor_of` gives the 0-dimensional tensor that the loss is multiplied by
  /// before the backward pass.
  using FactorOf = std::function<at::Tensor(const Loss&)>;
  using Passes = std::function<Loss(const Batch& batch, const FactorOf& factor_of)>;

  MicroBatchGraph(DeviceGraphMaker make_graph, FlatState& state, Passes passes);

  /// Runs a micro-batch by the graph and leaves its gradients in the parameters; nothing when it has to be run as it
  /// is. No hook is called.
  std::optional<at::Tensor> run(const Batch& batch, double factor);

  /// Why there is no graph, to be told once.
  std::optional<std::string> take_note() { return std::exchange(note_, std::nullopt); }

 private:
  void record(const Batch& batch);

  DeviceGraphMaker make_graph_;  ///< empty once given up
  FlatState& state_;
  Passes passes_;
  int num_seen_ = 0;
  std::unique_ptr<DeviceGraph> graph_;
  Batch batch_;                                               ///< what the graph reads
  at::Tensor factor_;                                         ///< as well; float64
  at::Tensor loss_;                                           ///< what it writes
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  ///< parameter, gradient
  std::vector<double> counts_;                                ///< of the state's loose tensors
  std::optional<std::string> note_;
};

}  // namespace lockstep
