#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/plan_options.hpp"

namespace lockstep {

/// Where a run's global batch comes from: what a later resume needs to tell a requeued command line from a new
/// request, and to follow the number of ranks without drifting.
struct BatchOrigin {
  std::int64_t requested_global_batch = 0;  ///< --global-batch-size as given; 0: derived
  std::int64_t requested_accumulation = 0;  ///< --gradient-accumulation-steps as given; 0: derived
  std::int64_t reference_global_batch = 0;  ///< keep-rank-batch: G' = round(reference G x P' / reference P)
  int reference_ranks = 1;

  void store(AttributeTree& tree) const;
  static BatchOrigin from(const AttributeTree& tree);  ///< throws Error
};

struct ResolvedBatch {
  BatchPlan plan;
  BatchOrigin origin;
  std::vector<std::string> remarks;  ///< rules that were applied without being asked for
};

/// The batch of a run from the start. With P ranks any two of m, G and A determine the third:
///
///   m, A  G = m x P x A            G, m  A is what today's ranks need; P need not divide anything
///   G, A  m = ceil(G / (P x A))    G     m = 8, or G when that is less (whatever P)
///   m     A = 1                    A     m = 8                        none: m = 8, A = 1
///
/// Throws Error(usage) with the numbers when all three are given and contradict each other, when a number is not
/// positive, or when an epoch has no step.
ResolvedBatch fresh_batch(const PlanOptions& options, const DataShape& data, int num_ranks);

/// The batch of a run that goes on from `stored` with this data and these ranks, by the rules of resuming: which G
/// counts, and that m stays unless it, or A without it, is asked for anew. Not yet checked by check_batch().
ResolvedBatch resumed_batch(const PlanOptions& options, const DataShape& data, int num_ranks, const BatchPlan& stored,
                            const BatchOrigin& origin);

/// Refuses, with the numbers, a plan whose epochs have no step, and data that shards itself whose ranks cannot take
/// equal parts of a step.
void check_batch(const BatchPlan& plan);

}  // namespace lockstep
