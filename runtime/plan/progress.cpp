#include "runtime/plan/progress.hpp"

namespace lockstep {

AttributeGroup to_attributes(const Progress& progress) {
  return {{"epoch", progress.epoch},
          {"sample_in_epoch", progress.sample_in_epoch},
          {"consumed_samples", progress.consumed_samples},
          {"steps_taken", progress.steps_taken},
          {"steps_applied", progress.steps_applied},
          {"steps_skipped", progress.steps_skipped},
          {"attempts", progress.attempts}};
}

Progress progress_from(const AttributeTree& tree) {
  const auto number = [&](const char* name) { return attribute<std::int64_t>(tree, "progress", name); };
  Progress progress;
  progress.epoch = number("epoch");
  progress.sample_in_epoch = number("sample_in_epoch");
  progress.consumed_samples = number("consumed_samples");
  progress.steps_taken = number("steps_taken");
  progress.steps_applied = number("steps_applied");
  progress.steps_skipped = number("steps_skipped");
  progress.attempts = number("attempts");
  if (progress.epoch < 0 || progress.sample_in_epoch < 0 || progress.consumed_samples < 0 ||
      progress.steps_applied < 0 || progress.steps_skipped < 0 ||
      progress.steps_taken != progress.steps_applied + progress.steps_skipped ||
      progress.attempts < progress.steps_taken) {
    throw Error(ErrorKind::failed, text("the stored progress contradicts itself (epoch ", progress.epoch, ", sample ",
                                        progress.sample_in_epoch, ", steps taken ", progress.steps_taken,
                                        ", applied ", progress.steps_applied, ", skipped ", progress.steps_skipped,
                                        ", attempts ", progress.attempts, "): take another checkpoint"));
  }
  return progress;
}

}  // namespace lockstep
