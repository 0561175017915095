#include "runtime/plan/coverage_proof.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/plan/coverage.hpp"
#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/plan/plan_state.hpp"
#include "runtime/plan/sampler.hpp"

namespace lockstep {
namespace {

constexpr std::size_t max_listed = 1000;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::failed, text("the coverage of the checkpoint is not proved: ", what));
}

/// Runs the steps of a stored run again, without training.
class Replay {
 public:
  explicit Replay(const AttributeTree& stored) : state_(plan_state_from(stored, nullptr)) {}

  CoverageProof run() {
    const auto& segments = state_.coverage.segments();
    if (segments.empty() || segments.front().first_step != 0) refuse("the plan of its first step is not stored");
    for (std::size_t i = 0; i < segments.size(); ++i) {
      enter(segments[i]);
      const bool is_last = i + 1 == segments.size();
      const Progress& last = state_.progress;
      const PlanSegment until =
          is_last ? PlanSegment{last.steps_taken, last.epoch, last.sample_in_epoch, {}} : segments[i + 1];
      while (at_.steps_taken < until.first_step) take_step(segments[i].batch, until);
    }
    compare();
    return std::move(proof_);
  }

 private:
  /// Goes on under the segment's plan, which begins where the last one ended (or past a tail that drop-last, with
  /// the new batch, cannot use).
  void enter(const PlanSegment& segment) {
    pass_over_tail(segment.batch, at_);
    if (segment.first_step != at_.steps_taken || segment.epoch != at_.epoch ||
        segment.sample_in_epoch != at_.sample_in_epoch) {
      refuse(text("a plan begins at step ", segment.first_step, " with epoch ", segment.epoch, ", sample ",
                  segment.sample_in_epoch, ", but the steps before it end at step ", at_.steps_taken, " with epoch ",
                  at_.epoch, ", sample ", at_.sample_in_epoch));
    }
    if (!segment.batch.has_length()) {
      throw Error(ErrorKind::usage,
                  "the run read a stream without a length (it has no set of samples that could be covered): nothing "
                  "to prove");
    }
    if (at_.sample_in_epoch == 0) open_epoch(segment.batch);
    coverage_.begin_segment(at_, segment.batch);
  }

  void take_step(const BatchPlan& batch, const PlanSegment& until) {
    std::int64_t samples = batch.samples_of_step(at_.sample_in_epoch);
    if (at_.epoch == until.epoch) samples = std::min(samples, until.sample_in_epoch - at_.sample_in_epoch);
    if (samples <= 0 || at_.epoch > until.epoch) {
      refuse(text("step ", at_.steps_taken, " has no samples left before epoch ", until.epoch, ", sample ",
                  until.sample_in_epoch));
    }
    std::uint64_t mark = 0;
    for (const SampleRange& range : batch.ranges_of_step(at_.sample_in_epoch, samples)) {
      ids_.resize(static_cast<std::size_t>(range.end - range.begin));
      fill_sample_ids(batch, state_.shuffle, state_.seed, at_.epoch, range.begin, ids_);
      for (std::size_t i = 0; i < ids_.size(); ++i) {
        use(ids_[i]);
        mark += sample_mark(at_.epoch, range.begin + static_cast<std::int64_t>(i), ids_[i]);
      }
    }
    coverage_.add_step(at_.epoch, at_.sample_in_epoch, samples);
    coverage_.chain(mark);
    at_.sample_in_epoch += samples;
    at_.consumed_samples += samples;
    at_.steps_taken += 1;
    const std::int64_t epoch = at_.epoch;
    pass_over_tail(batch, at_);
    if (at_.epoch != epoch) open_epoch(batch);
  }

  void open_epoch(const BatchPlan& batch) {
    close_epoch();
    if (!proof_.epochs.empty() && proof_.epochs.back().epoch == at_.epoch) proof_.epochs.pop_back();
    proof_.epochs.push_back({at_.epoch, batch.num_samples, 0, false, {}});
    used_.assign(static_cast<std::size_t>(batch.num_samples), false);
  }

  void close_epoch() {
    if (proof_.epochs.empty() || proof_.epochs.back().epoch >= at_.epoch) return;
    EpochCoverage& epoch = proof_.epochs.back();
    epoch.is_over = true;
    for (std::size_t id = 0; id < used_.size() && epoch.left_out.size() < max_listed; ++id) {
      if (!used_[id]) epoch.left_out.push_back(static_cast<std::int64_t>(id));
    }
    if (epoch.num_used < epoch.num_samples && !state_.batch.drop_last) {
      refuse(text("epoch ", epoch.epoch, " used ", epoch.num_used, " of ", epoch.num_samples, " samples"));
    }
  }

  void use(std::int64_t id) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= used_.size() || used_[index]) {
      refuse(text("sample ", id, " would be used twice in epoch ", at_.epoch));
    }
    used_[index] = true;
    ++proof_.epochs.back().num_used;
  }

  void compare() {
    const Progress& stored = state_.progress;
    if (at_.epoch != stored.epoch || at_.sample_in_epoch != stored.sample_in_epoch ||
        at_.consumed_samples != stored.consumed_samples) {
      refuse(text("its plans lead to epoch ", at_.epoch, ", sample ", at_.sample_in_epoch, " after ",
                  at_.consumed_samples, " samples, and epoch ", stored.epoch, ", sample ", stored.sample_in_epoch,
                  " after ", stored.consumed_samples, " samples are stored"));
    }
    if (coverage_.spans() != state_.coverage.spans()) {
      refuse("the stored ranges of consumed samples are not those of its steps");
    }
    proof_.chain_proved = state_.coverage.chained_steps() == stored.steps_taken;
    if (proof_.chain_proved && coverage_.chain_value() != state_.coverage.chain_value()) {
      refuse("the hash chain over the sample ids that were read is not that of its steps: other samples were read");
    }
    proof_.num_steps = at_.steps_taken;
    proof_.num_samples = at_.consumed_samples;
    const bool just_begun = !proof_.epochs.empty() && proof_.epochs.back().num_used == 0;
    if (just_begun) proof_.epochs.pop_back();
  }

  PlanState state_;
  Progress at_;
  Coverage coverage_;
  CoverageProof proof_;
  std::vector<bool> used_;
  std::vector<std::int64_t> ids_;
};

}  // namespace

std::int64_t CoverageProof::num_left_out() const {
  std::int64_t count = 0;
  for (const EpochCoverage& epoch : epochs) count += epoch.is_over ? epoch.num_samples - epoch.num_used : 0;
  return count;
}

CoverageProof verify_coverage(const AttributeTree& stored) { return Replay(stored).run(); }

}  // namespace lockstep
