#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// In what the forward pass computes. Weights, moments and reductions are float32 in all of them.
enum class Precision { fp32, bf16, fp16 };

std::string name_of(Precision precision);

/// Throws Error(usage) for an unknown name.
Precision precision_from(std::string_view name);

/// LibTorch's autocast for the life of the object, on this thread. The cache of cast weights is cleared at the end:
/// the optimizer moves the weights between two micro-batches.
class AutocastGuard {
 public:
  AutocastGuard(Precision precision, c10::DeviceType device);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType previous_type_;
};

/// The seed of a micro-batch's random numbers: a function of the run's seed, the step and the micro-batch, so that
/// dropout and augmentation do not know the ranks, nor how often a step was tried.
std::uint64_t micro_batch_seed(std::uint64_t run_seed, std::int64_t step, std::int64_t micro_batch);

}  // namespace lockstep
