#include "io/retention.hpp"

#include <algorithm>

#include "runtime/plan/error.hpp"

namespace lockstep {

void check_retention(const RetentionRule& rule) {
  if (rule.total_limit < 0) {
    throw Error(ErrorKind::usage, text("--save-total-limit is ", rule.total_limit,
                                       " (a number of checkpoints): give 1 or more, or 0 to keep all"));
  }
  if (rule.keep_every < 0) {
    throw Error(ErrorKind::usage, text("--save-keep-every is ", rule.keep_every,
                                       " (a number of steps): give 1 or more, or 0 to keep none for good"));
  }
  if (rule.keep_every > 0 && rule.total_limit == 0) {
    throw Error(ErrorKind::usage, text("--save-keep-every ", rule.keep_every,
                                       " has no effect (without "
                                       "--save-total-limit all checkpoints are kept): give both, or neither"));
  }
}

std::vector<std::int64_t> steps_to_remove(const RetentionRule& rule, std::vector<std::int64_t> steps,
                                          std::int64_t newest) {
  if (rule.total_limit == 0) return {};
  std::erase_if(steps, [&](std::int64_t step) {
    return step == newest || (rule.keep_every > 0 && step % rule.keep_every == 0);
  });
  std::sort(steps.begin(), steps.end());
  const bool newest_counts = rule.keep_every == 0 || newest % rule.keep_every != 0;
  const auto limit = static_cast<std::size_t>(rule.total_limit - (newest_counts ? 1 : 0));
  if (steps.size() <= limit) return {};
  steps.resize(steps.size() - limit);
  return steps;
}

}  // namespace lockstep
