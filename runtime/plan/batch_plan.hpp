#pragma once

#include <cstdint>

#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// How the data is cut into steps and dealt to ranks today. A value; every function is pure arithmetic.
///
/// An epoch's steps are cut from its order as global batches of `global_batch_size` samples; a step never crosses
/// an epoch's end. Only share() depends on the ranks, so which samples form a step does not.
struct BatchPlan {
  std::int64_t num_samples = 0;        ///< N
  std::int64_t global_batch_size = 0;  ///< G, samples of a step over all ranks
  std::int64_t micro_batch_size = 0;   ///< m, samples of one forward and backward pass
  int num_ranks = 1;                   ///< P
  bool drop_last = false;              ///< leave out the tail of an epoch that is shorter than G

  /// ceil(N / G), floor with drop-last.
  std::int64_t steps_per_epoch() const;

  /// Samples an epoch really uses: N, or the largest multiple of G with drop-last.
  std::int64_t used_samples() const;

  /// Samples of the step that starts at `sample_in_epoch`: min(G, N - position).
  std::int64_t samples_of_step(std::int64_t sample_in_epoch) const;

  /// ceil(samples / m); the last micro-batch may be short.
  std::int64_t num_micro_batches(std::int64_t samples) const;

  /// The micro-batches of `rank` in a step of `samples` samples: contiguous, as even as they go, perhaps none.
  LeafRange share(std::int64_t samples, int rank) const;

  /// The most micro-batches one rank runs in a full step (the accumulation steps A of today).
  std::int64_t accumulation_steps() const;
};

}  // namespace lockstep
