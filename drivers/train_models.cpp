#include "drivers/train_models.hpp"

#include <ATen/Functions.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <numeric>

#include "runtime/plan/error.hpp"
#include "runtime/plan/shape_text.hpp"

namespace lockstep {
namespace {

class Mlp final : public Model {
 public:
  explicit Mlp(const ModelOptions& options)
      : dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))) {
    std::int64_t width =
        std::accumulate(options.input_shape.begin(), options.input_shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<std::int64_t> widths = options.hidden_sizes;
    widths.push_back(options.num_outputs);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, widths[i])));
      width = widths[i];
    }
  }

  at::Tensor forward(at::Tensor x) override {
    x = x.flatten(1);
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
      x = at::relu(layers_[i]->forward(x));
      if (dropout_->options.p() > 0.0) x = dropout_->forward(x);
    }
    return layers_.back()->forward(x);
  }

 private:
  torch::nn::Dropout dropout_;
  std::vector<torch::nn::Linear> layers_;
};

class Cnn final : public Model {
 public:
  explicit Cnn(const ModelOptions& options)
      : conv1_(register_module("conv1", torch::nn::Conv2d(convolution(options.input_shape[0], 32)))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(32))),
        conv2_(register_module("conv2", torch::nn::Conv2d(convolution(32, 64)))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(64))),
        hidden_(register_module(
            "hidden", torch::nn::Linear(64 * (options.input_shape[1] / 4) * (options.input_shape[2] / 4), 128))),
        dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))),
        output_(register_module("output", torch::nn::Linear(128, options.num_outputs))) {}

  at::Tensor forward(at::Tensor x) override {
    x = at::max_pool2d(at::relu(norm1_->forward(conv1_->forward(x))), 2);
    x = at::max_pool2d(at::relu(norm2_->forward(conv2_->forward(x))), 2);
    x = at::relu(hidden_->forward(x.flatten(1)));
    return output_->forward(dropout_->forward(x));
  }

 private:
  static torch::nn::Conv2dOptions convolution(std::int64_t in, std::int64_t out) {
    // No bias: the batch norm that follows has its own.
    return torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false);
  }

  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Linear hidden_;
  torch::nn::Dropout dropout_;
  torch::nn::Linear output_;
};

}  // namespace

std::shared_ptr<Model> make_model(const ModelOptions& options, std::uint64_t seed) {
  torch::manual_seed(seed);
  if (options.kind == "mlp") return std::make_shared<Mlp>(options);
  if (options.kind == "cnn") {
    const auto& shape = options.input_shape;
    if (shape.size() != 3 || shape[1] < 4 || shape[2] < 4)
      throw Error(ErrorKind::usage,
                  text("a sample is ", shape_text(shape),
                       " (the cnn takes channels x height x width, at least 4 x 4 pixels): store the "
                       "inputs as [samples, channels, height, width], or use --model mlp"));
    return std::make_shared<Cnn>(options);
  }
  throw Error(ErrorKind::usage, text("the model '", options.kind,
                                     "' is not known: use mlp or cnn, or link the library "
                                     "and bring your own (examples/own_model.cpp)"));
}

LossFunction make_loss(const std::string& name, Model& model) {
  if (name == "cross-entropy")
    return [&model](const Batch& batch) -> Loss {
      return at::cross_entropy_loss(model.forward(batch.inputs), batch.targets.flatten());
    };
  if (name == "mse")
    return [&model](const Batch& batch) -> Loss {
      const at::Tensor outputs = model.forward(batch.inputs);
      const at::Tensor targets = batch.targets.view_as(outputs);
      return at::mse_loss(outputs, targets.is_floating_point() ? targets : targets.to(at::kFloat));
    };
  throw Error(ErrorKind::usage, text("the loss '", name, "' is not known: use cross-entropy or mse"));
}

MetricFunction make_metrics(const std::string& loss_name, Model& model) {
  if (loss_name != "cross-entropy") return metric_of(make_loss(loss_name, model));
  return [&model](const Batch& batch) {
    const at::Tensor outputs = model.forward(batch.inputs).to(at::kFloat);
    const at::Tensor targets = batch.targets.flatten();
    const auto samples = static_cast<double>(batch.size());
    const double loss = at::cross_entropy_loss(outputs, targets).item<double>() * samples;
    const auto correct = static_cast<double>(outputs.argmax(1).eq(targets).sum().item<std::int64_t>());
    return std::map<std::string, WeightedSum>{{"loss", {loss, samples}}, {"accuracy", {correct, samples}}};
  };
}

}  // namespace lockstep
