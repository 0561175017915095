#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// Half-open range of positions in an epoch's order.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// One rank's part of a step.
struct StepShare {
  LeafRange micro_batches;        ///< among those of the step
  std::int64_t first_sample = 0;  ///< position of its first sample in the epoch's order
  std::int64_t num_samples = 0;   ///< contiguous from there; cut into micro-batches of m, the last may be short
};

/// How the data is cut into steps and dealt to ranks today. A value; every function is pure arithmetic.
///
/// An epoch's steps are cut from its order as global batches of `global_batch_size` samples; a step never crosses
/// an epoch's end. Only share() and share_at() depend on the ranks, so which samples form a step does not.
///
/// Data that shards itself (`samples_of_rank` is not empty) is not divided a second time. Its order is that of
/// rank 0's samples, then that of rank 1's, ...; a step takes the next G / P samples of *every* rank. Ranks with
/// less run out earlier and bring nothing then, so an epoch has as many steps as the longest rank needs, and no
/// sample is lost or repeated. With drop-last each rank leaves out its own tail.
///
/// A stream without a length has `num_samples == 0`; all its steps are full until somebody says that it ended.
struct BatchPlan {
  std::int64_t num_samples = 0;               ///< N
  std::int64_t global_batch_size = 0;         ///< G, samples of a step over all ranks
  std::int64_t micro_batch_size = 0;          ///< m, samples of one forward and backward pass
  int num_ranks = 1;                          ///< P
  bool drop_last = false;                     ///< leave out the tail of an epoch that is shorter than G
  std::vector<std::int64_t> samples_of_rank;  ///< data that shards itself; empty otherwise

  bool has_length() const { return num_samples > 0; }
  bool is_sharded() const { return !samples_of_rank.empty(); }

  /// ceil(N / G), floor with drop-last; 0 for a stream.
  std::int64_t steps_per_epoch() const;

  /// Samples an epoch really uses: N, or the largest multiple of G with drop-last.
  std::int64_t used_samples() const;

  /// Steps that run from position `begin` up to position `end` of one epoch: ceil((end - begin) / G), floor with
  /// drop-last, 0 when end <= begin. Needs a length.
  std::int64_t steps_between(std::int64_t begin, std::int64_t end) const;

  /// Samples that those steps use: at most end - begin (data that shards itself: its last step is whole).
  std::int64_t samples_between(std::int64_t begin, std::int64_t end) const;

  /// The position after `steps` steps from an epoch's start, at most N.
  std::int64_t position_after(std::int64_t steps) const;

  /// Samples of the step that starts at `sample_in_epoch`: min(G, N - position).
  std::int64_t samples_of_step(std::int64_t sample_in_epoch) const;

  /// ceil(samples / m); the last micro-batch may be short.
  std::int64_t num_micro_batches(std::int64_t samples) const;

  /// The same for any kind of data: the step of `samples` samples that starts at `sample_in_epoch`.
  std::int64_t num_micro_batches_at(std::int64_t sample_in_epoch, std::int64_t samples) const;

  /// The micro-batches of `rank` in a step of `samples` samples: contiguous, as even as they go, perhaps none.
  LeafRange share(std::int64_t samples, int rank) const;

  /// The same with the samples, for any kind of data.
  StepShare share_at(std::int64_t sample_in_epoch, std::int64_t samples, int rank) const;

  /// The positions that a step takes over all ranks: one range, or one for each rank that brings samples of its own.
  std::vector<SampleRange> ranges_of_step(std::int64_t sample_in_epoch, std::int64_t samples) const;

  /// The most micro-batches one rank runs in a full step (the accumulation steps A of today).
  std::int64_t accumulation_steps() const;

  /// The part of the ranks' micro-batch slots of a full step that has work: 1 when all ranks run equally many.
  double utilization() const;

  /// Ranks that have a micro-batch in a full step.
  std::int64_t num_working_ranks() const;

 private:
  std::int64_t rank_batch() const { return global_batch_size / num_ranks; }  ///< of data that shards itself
  std::int64_t used_of_rank(std::size_t rank) const;
  std::int64_t sharded_step_at(std::int64_t sample_in_epoch) const;
};

}  // namespace lockstep
