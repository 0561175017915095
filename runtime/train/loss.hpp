#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/train/dataset.hpp"

namespace lockstep {

/// What a step's loss functions gave: nothing where no micro-batch was run, or one of the two of Loss.
enum class LossKind { none, mean, weighted };

/// What a loss function gives back for a micro-batch: a scalar that is the mean over its samples, or the sum of
/// something with its weight (e.g. the sum over tokens and their number). A run uses one of the two throughout.
struct Loss {
  /*implicit*/ Loss(at::Tensor mean_over_samples) : value(std::move(mean_over_samples)) {}  // NOLINT
  Loss(at::Tensor sum, double sum_weight) : value(std::move(sum)), weight(sum_weight) {}

  at::Tensor value;              ///< 0-dimensional, differentiable
  std::optional<double> weight;  ///< absent: `value` is a mean over the samples

  LossKind kind() const { return weight ? LossKind::weighted : LossKind::mean; }
};

/// The forward pass of a micro-batch. Called with the model in training mode, under the run's autocast.
using LossFunction = std::function<Loss(const Batch&)>;

/// A metric of some samples: the sum over them, and what it is divided by in the end.
struct WeightedSum {
  double sum = 0.0;
  double weight = 0.0;
};

/// The metrics of an evaluation batch by name ("loss", "accuracy"). The names must not depend on the batch.
/// Called with the model in evaluation mode, without gradients, under the run's autocast.
using MetricFunction = std::function<std::map<std::string, WeightedSum>(const Batch&)>;

/// The metric "loss" of a loss function.
MetricFunction metric_of(LossFunction loss);

}  // namespace lockstep
