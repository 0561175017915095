#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/communicator.hpp"
#include "runtime/plan/reduction_tree.hpp"
#include "runtime/train/loss.hpp"

namespace lockstep {

/// What a rank wants the others to know at a step boundary. Rides on the step's scalar collective, so it is free.
struct StepFlags {
  bool stop = false;          ///< a signal, a deadline or an operator asks to stop: any rank counts
  bool save = false;          ///< a checkpoint is wanted now: any rank counts
  bool save_durable = false;  ///< this rank's part of the pending checkpoint is written: all ranks count
};

/// The few numbers of a step that every rank needs: one rank's, or all ranks' put together. Sums are nodes of a fixed
/// tree, which whoever wants the sum adds up in the tree's order.
struct StepScalars {
  bool has_failed = false;  ///< a micro-batch threw, or the ranks' losses are of different kinds: any rank counts
  StepFlags flags;
  LossKind loss_kind = LossKind::none;
  bool buffers_finite = true;                ///< all ranks count
  std::uint64_t sample_mark = 0;             ///< summed
  std::vector<double> counter_counts;        ///< by how much each loose counter went up: the largest counts
  std::vector<double> losses;                ///< nodes over the step's micro-batches
  std::vector<double> weights;               ///< as well
  std::vector<std::vector<double>> squares;  ///< per group: nodes over its blocks of parameters
};

/// **Collective**, a single all_gather. All ranks' scalars put together, the same on every rank; nodes follow each
/// other in rank order, as the programs want them. The programs say how many nodes each rank brings: `program` those
/// of the micro-batches, `norm_programs` those of each group.
StepScalars combine_scalars(Communicator& communicator, const StepScalars& mine, const TreeProgram& program,
                            std::span<const TreeProgram> norm_programs);

}  // namespace lockstep
