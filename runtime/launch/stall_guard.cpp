#include "runtime/launch/stall_guard.hpp"

#include <fstream>
#include <ios>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/launch/deadline.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {

namespace {
constexpr const char* file_name = "RESTARTS";
}

bool StallGuard::has_launches(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / file_name, error);
}

StallGuard::StallGuard(std::filesystem::path folder, std::int64_t max_launches)
    : file_(std::move(folder) / file_name), max_launches_(max_launches) {
  if (max_launches < 0) {
    throw Error(ErrorKind::usage, text("--max-restarts-without-progress ", max_launches,
                                       " is below zero: give the number of launches that may begin at the same step, "
                                       "or 0 for no limit"));
  }
}

LaunchCount StallGuard::count_launch(std::int64_t step) {
  LaunchCount count{0, 0, unix_seconds()};
  {
    LaunchCount stored;
    std::int64_t stored_step = -1;
    std::string word;
    std::ifstream file(file_);
    if (file >> word >> stored_step >> word >> stored.at_this_step >> word >> stored.in_all >> word >>
        stored.first_unix_seconds) {
      count = stored;
      if (stored_step != step) count.at_this_step = 0;
    }
  }
  if (max_launches_ > 0 && count.at_this_step >= max_launches_) {
    throw Error(ErrorKind::do_not_requeue,
                text("no progress: ", count.at_this_step, " launches in a row began at step ", step,
                     " and none got as far as a save (--max-restarts-without-progress ", max_launches_,
                     "); look for the cause in the log, save more often or ask for more time, then remove ",
                     file_.string(), " to try again"));
  }
  ++count.at_this_step;
  ++count.in_all;
  // Written whole beside it, then renamed: a launch that is killed here leaves the old count.
  std::filesystem::path fresh = file_;
  fresh += ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << std::fixed << "step " << step << " launches " << count.at_this_step << " in_all " << count.in_all
       << " since " << count.first_unix_seconds << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(fresh, file_, error);
  if (!file || error) {
    throw Error(ErrorKind::failed, text("the count of launches cannot be written to ", file_.string(), " (",
                                        error ? error.message() : "no space or no permission",
                                        "): make the checkpoint folder writable"));
  }
  return count;
}

}  // namespace lockstep
