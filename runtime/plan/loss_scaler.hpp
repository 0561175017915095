#pragma once

#include <cstdint>

#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// What the user chose of the loss scaler. Values and meaning as of PyTorch's GradScaler.
struct LossScalerOptions {
  bool enabled = false;            ///< only fp16 needs one
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  double min_scale = 1.0;
  double max_scale = 16777216.0;   ///< 2^24
  std::int64_t hysteresis = 1;     ///< overflows in a row before the scale backs off
  bool is_static = false;          ///< the scale never changes
};

/// The loss scale of a run and when it moves: float32 arithmetic, GradScaler's to the bit.
/// A value without a device: the trainer asks scale(), and tells what a step's gradients were.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options);

  float scale() const;                 ///< 1 when disabled
  bool at_minimum() const;             ///< a further overflow cannot be cured by backing off
  void update(bool overflowed);        ///< once an attempt
  std::int64_t growth_tracker() const;
  std::int64_t num_overflows() const;

  AttributeGroup to_attributes() const;
  static LossScaler from(const AttributeTree& tree);  ///< reads "loss_scaler"; throws Error
};

}  // namespace lockstep
