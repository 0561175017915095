#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep {

/// What is known of a run's launches when one begins; the launch itself counts.
struct LaunchCount {
  std::int64_t at_this_step = 1;    ///< launches in a row that began at this step
  std::int64_t in_all = 1;          ///< since the folder's first one
  double first_unix_seconds = 0.0;  ///< when that began
};

/// Counts launches in a row that began at the same step, and ends a chain of requeues that leads nowhere.
///
/// The count is kept in the file RESTARTS of the checkpoint folder, so that it also counts launches that were killed
/// without a signal. Any progress sets it back: ordinary preemptions are not limited. Kept by rank 0 alone; local.
class StallGuard {
 public:
  /// `max_launches` of --max-restarts-without-progress; 0 = no limit.
  StallGuard(std::filesystem::path folder, std::int64_t max_launches);

  /// Counts a launch that begins at `step` with steps left to take; call it before the first step. Throws
  /// Error(do_not_requeue) when `max_launches` in a row began there before; that stays so until the file is removed
  /// or a launch begins at another step.
  LaunchCount count_launch(std::int64_t step);

  /// Whether a launch was ever counted in `folder`.
  static bool has_launches(const std::filesystem::path& folder);

 private:
  std::filesystem::path file_;
  std::int64_t max_launches_;
};

}  // namespace lockstep
