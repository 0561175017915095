#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/plan/communicator.hpp"
#include "runtime/plan/training_plan.hpp"
#include "runtime/train/flat_state.hpp"
#include "runtime/train/gradient_buckets.hpp"
#include "runtime/train/micro_batches.hpp"
#include "runtime/train/step_numbers.hpp"
#include "runtime/train/step_scalars.hpp"

namespace lockstep {

/// The totals of a step, the same bits on all ranks and on any number of them.
struct StepTotals {
  double loss = 0.0;           ///< mean over the samples (or over the weights)
  double gradient_norm = 0.0;  ///< global, unscaled, before clipping; inf or nan when not finite
  bool finite = true;          ///< gradients, loss and buffers
  bool loss_finite = true;
  double gradient_factor = 1.0;  ///< turns the sliced sums into the mean gradient
  double buffer_factor = 1.0;
  std::vector<double> counter_counts;
  std::uint64_t sample_mark = 0;
  StepFlags flags;
};

/// Adds up a step over the ranks: gradients into the owners' slices, scalars in one small collective. Where transfers
/// overlap, a step is launched and its numbers, which the device computes, are seen later; else it is reduced.
class StepExchange {
 public:
  /// **Collective.** `most_micro_batches` of a rank in a step. State, buckets and communicator must outlive it.
  StepExchange(FlatState& state, const GradientBuckets& buckets, Communicator& communicator,
               std::int64_t most_micro_batches);

  /// Before the step's micro-batches, and before each further attempt at it. Local.
  void begin(const BatchPlan& plan, const StepPlan& step);

  /// **Collective.** The next of the buckets is whole on this rank: its transfer starts where that gains anything.
  void start(const Bucket& bucket);

  /// **Collective.** Starts what is not under way and adds up the step that began. Throws on all ranks what any
  /// rank's micro-batches threw.
  StepTotals reduce(const MicroBatchSums& sums, double loss_scale, const StepFlags& flags);

  /// **Collective.** The same without a wait for the device: loss, norm and whether they are finite are not known
  /// yet.
  StepTotals launch(const MicroBatchSums& sums, double loss_scale, const StepFlags& flags);

  /// Waits for the numbers of the oldest step that was launched and fills in its totals. Local.
  void settle(StepTotals& totals);

  /// What was launched and not settled is not asked for any more. Local.
  void forget();

  /// Of the step launched last, on the device.
  const StepNumbers& numbers() const { return *numbers_; }

  /// This rank's slice of the summed gradients (and buffer changes) of each group; valid from reduce() to
  /// the next begin().
  std::vector<at::Tensor>& slices() { return slices_; }

 private:
  const TreeProgram& program_for(const BatchPlan& plan, const StepPlan& step);

  /// What the step's numbers need to become totals.
  struct Launched {
    std::vector<std::int64_t> micro_batches_of_rank;
    double weight = 0.0;
  };

  void reduce_gradients();
  StepScalars scalars_of(const MicroBatchSums& sums, const StepFlags& flags) const;
  void add_losses_and_squares(StepScalars& mine, const MicroBatchSums& sums) const;
  StepScalars combine(const StepScalars& mine, const MicroBatchSums& sums, const std::vector<TreeProgram>& norms);
  StepTotals totals_of(const StepScalars& all, double loss_scale) const;

  FlatState& state_;
  const GradientBuckets& buckets_;
  Communicator& communicator_;
  const TreeProgram* program_ = nullptr;  ///< of the step under way, as the next three
  std::vector<std::int64_t> micro_batches_of_rank_;
  std::int64_t num_micro_batches_ = 0;
  double buffer_factor_ = 1.0;   ///< turns sums over micro-batches into means over samples
  std::size_t num_started_ = 0;  ///< of the buckets
  std::vector<at::Tensor> slices_;
  std::optional<StepNumbers> numbers_;                         ///< where steps are launched
  std::deque<Launched> launched_;                              ///< and not yet settled
  std::vector<TreeProgram> norm_programs_;                     ///< per group, over its parameter blocks
  std::map<std::vector<std::int64_t>, TreeProgram> programs_;  ///< by the ends of the ranks' shares
};

}  // namespace lockstep
