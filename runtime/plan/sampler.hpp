#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// One epoch's order of `num_samples` samples: a permutation that is a pure function of (seed, epoch, shard).
///
/// Any position is answered by itself in constant time and memory, so a resume seeks nowhere. The permutation is
/// a keyed Feistel network over the next power of two, walked along its cycle until the result is below
/// num_samples (fewer than two rounds of it on average). The stored runs rely on it: it must never change.
class EpochOrder {
 public:
  EpochOrder(ShuffleKind kind, std::uint64_t seed, std::int64_t epoch, std::int64_t num_samples,
             std::int64_t shard = 0);

  /// The sample at `position`, 0 <= position < num_samples.
  std::int64_t operator[](std::int64_t position) const;

 private:
  static constexpr int num_rounds = 12;

  std::int64_t num_samples_;
  bool shuffled_;
  int low_bits_ = 0;
  std::uint64_t low_mask_ = 0;
  std::uint64_t high_mask_ = 0;
  std::array<std::uint64_t, num_rounds> keys_{};
};

/// The sample ids at the positions [first, first + ids.size()) of an epoch's order, for any kind of data. Data that
/// shards itself: the samples of rank r count from samples_of_rank[0] + ... + samples_of_rank[r - 1], and each
/// rank's are shuffled among themselves. A stream has no order but its own: the id is the position.
void fill_sample_ids(const BatchPlan& batch, ShuffleKind kind, std::uint64_t seed, std::int64_t epoch,
                     std::int64_t first, std::span<std::int64_t> ids);

/// A well-mixed 64-bit number; the base of the orders and of the marks of coverage.
std::uint64_t mix64(std::uint64_t value);

}  // namespace lockstep
