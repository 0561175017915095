#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep {

/// Counts launches in a row that began at the same step, and ends a chain of requeues that leads nowhere.
///
/// The count is kept in the file RESTARTS of the checkpoint folder, so that it also counts launches that were killed
/// without a signal. Any progress sets it back: ordinary preemptions are not limited. Kept by rank 0 alone; local.
class StallGuard {
 public:
  /// `max_launches` of --max-restarts-without-progress; 0 = no limit.
  StallGuard(std::filesystem::path folder, std::int64_t max_launches);

  /// Counts a launch that begins at `step` with steps left to take; call it before the first step. Returns how many
  /// began there in a row, this one included. Throws Error(do_not_requeue) instead when `max_launches` began there
  /// before; that stays so until the file is removed or a launch begins at another step.
  std::int64_t count_launch(std::int64_t step);

 private:
  std::filesystem::path file_;
  std::int64_t max_launches_;
};

}  // namespace lockstep
