#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "runtime/plan/communicator.hpp"
#include "runtime/train/dataset.hpp"
#include "runtime/train/loss.hpp"
#include "runtime/train/precision.hpp"

namespace lockstep {

struct EvaluationSettings {
  Precision precision = Precision::fp32;
  std::int64_t batch_size = 1;  ///< samples of a forward pass
};

/// **Collective.** The metrics of `module` over `data`, each sample counted once on any number of ranks: batches are
/// dealt to the ranks, sums and weights are added up in the fixed tree, so the bits do not know the ranks. The module
/// is put into evaluation mode and back; LibTorch's default generator stays where it was.
///
/// Empty when `stop_requested` said so on any rank meanwhile. Throws Error on all ranks what `metrics` threw on any,
/// and for data that is empty or that shards itself.
std::map<std::string, double> evaluate_model(torch::nn::Module& module, const Dataset& data,
                                             const MetricFunction& metrics, const EvaluationSettings& settings,
                                             Communicator& communicator,
                                             const std::function<bool()>& stop_requested = {});

}  // namespace lockstep
