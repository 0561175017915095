#pragma once

#include <string>

namespace lockstep {

/// One line of a resume: a number that was stored, and what it is now.
struct PlanChange {
  std::string name;  ///< "ranks", "global_batch_size", "steps_left", ...
  std::string before;
  std::string after;
};

}  // namespace lockstep
