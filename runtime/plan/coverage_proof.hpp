#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// What a run did with one epoch.
struct EpochCoverage {
  std::int64_t epoch = 0;
  std::int64_t num_samples = 0;
  std::int64_t num_used = 0;           ///< each exactly once
  bool is_over = false;                ///< the run went on to the next epoch (or ended with this one)
  std::vector<std::int64_t> left_out;  ///< of an epoch that is over: ids that drop-last left out, at most 1000
};

struct CoverageProof {
  std::int64_t num_steps = 0;
  std::int64_t num_samples = 0;  ///< used over all epochs
  bool chain_proved = false;     ///< false: the run did not chain every step, only the ranges are proved
  std::vector<EpochCoverage> epochs;

  std::int64_t num_left_out() const;  ///< over all epochs that are over
};

/// Replays the run behind a checkpoint from its seed, its data and the plans it went through, and proves that the
/// stored ranges are exactly the steps' samples, that no sample was used twice in an epoch, that none was left out
/// of an epoch that is over except by drop-last, and that the ids really read were those (the hash chain).
///
/// Costs the samples of the run in time and one bit a sample of an epoch in memory. Throws Error(failed) that names
/// the first thing that does not agree; Error(usage) for a stream, which has no length to cover.
CoverageProof verify_coverage(const AttributeTree& stored);

}  // namespace lockstep
