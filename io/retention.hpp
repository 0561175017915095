#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Which checkpoints a folder keeps.
struct RetentionRule {
  std::int64_t total_limit = 0;  ///< so many of the newest, by number; 0: all
  std::int64_t keep_every = 0;   ///< beside them, those whose step is a multiple; 0: none
};

/// Throws Error for rules that make no sense: negative numbers, or keep_every where everything is kept.
void check_retention(const RetentionRule& rule);

/// The steps to remove from `steps` (whole checkpoints, in any order). Never `newest`, the one just verified.
std::vector<std::int64_t> steps_to_remove(const RetentionRule& rule, std::vector<std::int64_t> steps,
                                          std::int64_t newest);

}  // namespace lockstep
