#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/train/loss.hpp"

namespace lockstep {

/// A model that turns inputs into outputs; what the built-in losses train.
class Model : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  virtual at::Tensor forward(at::Tensor inputs) = 0;
};

/// Which built-in model, and how large.
struct ModelOptions {
  std::string kind = "mlp";                             ///< "mlp" or "cnn"
  std::vector<std::int64_t> hidden_sizes = {256, 256};  ///< mlp
  double dropout = 0.0;                                 ///< mlp: after each hidden layer; cnn: before the last layer
  std::vector<std::int64_t> input_shape;                ///< of one sample: [channels, height, width] for the cnn
  std::int64_t num_outputs = 10;                        ///< classes, or values of a target
};

/// Builds the model with weights drawn from LibTorch's default generator, seeded with `seed`: the same on every rank.
///
/// "mlp": flatten, then linear layers with ReLU between them. "cnn": two blocks of 3x3 convolution, batch norm, ReLU
/// and 2x2 pooling (32 and 64 channels), then a hidden linear layer of 128. Throws Error(usage) for an unknown kind
/// or an input shape that it cannot take.
std::shared_ptr<Model> make_model(const ModelOptions& options, std::uint64_t seed);

/// "cross-entropy" (targets: one class index a sample) or "mse" (targets of the output's shape).
/// `model` must outlive the function. Throws Error(usage) for another name.
LossFunction make_loss(const std::string& name, Model& model);

/// The metrics of an evaluation: "loss", and with cross-entropy "accuracy".
MetricFunction make_metrics(const std::string& loss_name, Model& model);

}  // namespace lockstep
