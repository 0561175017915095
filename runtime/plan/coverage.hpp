#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/batch_plan.hpp"
#include "runtime/plan/progress.hpp"

namespace lockstep {

/// The mark of one sample that was read: `id` at `position` of `epoch`'s order. The sum (mod 2^64) over the samples
/// of a step is the step's mark; each rank adds up its own samples', so it does not depend on the ranks.
std::uint64_t sample_mark(std::int64_t epoch, std::int64_t position, std::int64_t id);

/// Epochs in a row of which the same ranges were consumed.
struct EpochSpan {
  std::int64_t first_epoch = 0;
  std::int64_t num_epochs = 1;
  std::vector<SampleRange> ranges;  ///< in order, disjoint, not touching

  friend bool operator==(const EpochSpan&, const EpochSpan&) = default;
};

/// From a step on the data were cut like this.
struct PlanSegment {
  std::int64_t first_step = 0;
  std::int64_t epoch = 0;
  std::int64_t sample_in_epoch = 0;
  BatchPlan batch;
};

/// What a run has consumed: the ranges of the global order, merged so that they stay few; the plans under which it
/// was; and a hash chain over the marks of the steps. Stored with every checkpoint.
class Coverage {
 public:
  /// Notes that from the step at `progress` on the data are cut by `batch`.
  void begin_segment(const Progress& progress, const BatchPlan& batch);

  /// Notes a step of `samples` samples at (epoch, sample_in_epoch), cut by the last segment's batch.
  void add_step(std::int64_t epoch, std::int64_t sample_in_epoch, std::int64_t samples);

  /// Chains the mark of the step that was added last. Steps without a mark leave the chain unprovable.
  void chain(std::uint64_t step_mark);

  const std::vector<EpochSpan>& spans() const { return spans_; }
  const std::vector<PlanSegment>& segments() const { return segments_; }
  std::uint64_t chain_value() const { return chain_; }
  std::int64_t chained_steps() const { return chained_steps_; }

  void store(AttributeTree& tree) const;            ///< the group "coverage"
  static Coverage from(const AttributeTree& tree);  ///< throws Error

 private:
  void add_range(std::int64_t epoch, SampleRange range);

  std::vector<EpochSpan> spans_;
  std::vector<PlanSegment> segments_;
  std::uint64_t chain_ = 0;
  std::int64_t chained_steps_ = 0;
};

}  // namespace lockstep
