#pragma once

#include <cstdint>

#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// What the user chose of the loss scaler. Values and meaning as of PyTorch's GradScaler.
struct LossScalerOptions {
  bool enabled = false;  ///< only fp16 needs one
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  double min_scale = 1.0;         ///< 0: no floor
  double max_scale = 16777216.0;  ///< 2^24
  std::int64_t hysteresis = 1;    ///< overflows in a row before the scale backs off
  bool is_static = false;         ///< the scale never changes
};

/// The loss scale of a run and when it moves: float32 arithmetic, GradScaler's to the bit.
/// A value without a device: the trainer asks scale(), and tells what a step's gradients were.
class LossScaler {
 public:
  /// Throws Error(usage) with the numbers when the options contradict each other.
  explicit LossScaler(const LossScalerOptions& options);

  /// The scaler of a run that goes on: scale, growth tracker and counters come from the checkpoint, everything else
  /// from today's options (the scale is brought into today's limits). A checkpoint without a scale (a run in another
  /// precision) starts at the initial one. Throws Error.
  static LossScaler resumed(const LossScalerOptions& options, const AttributeTree& stored);

  float scale() const;           ///< 1 when disabled
  bool at_minimum() const;       ///< a further overflow cannot be cured by backing off
  void update(bool overflowed);  ///< once an attempt
  std::int64_t growth_tracker() const { return growth_tracker_; }
  std::int64_t num_overflows() const { return num_overflows_; }
  const LossScalerOptions& options() const { return options_; }

  /// The group "loss_scaler": scale, growth_factor, backoff_factor, growth_interval, growth_tracker, min_scale,
  /// max_scale, hysteresis, overflows_in_a_row, num_overflows, ...
  AttributeGroup to_attributes() const;
  static LossScaler from(const AttributeTree& tree);  ///< exactly as stored; throws Error

 private:
  void back_off();
  void grow();

  LossScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;  ///< steps without an overflow since the scale last moved
  std::int64_t overflows_in_a_row_ = 0;
  std::int64_t num_overflows_ = 0;
};

}  // namespace lockstep
