#include "runtime/comm/stall_guard.hpp"

#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {

StallGuard::StallGuard(std::filesystem::path folder, std::int64_t max_launches)
    : file_(std::move(folder) / "RESTARTS"), max_launches_(max_launches) {
  if (max_launches < 0) {
    throw Error(ErrorKind::usage, text("--max-restarts-without-progress ", max_launches,
                                       " is below zero: give the number of launches that may begin at the same step, "
                                       "or 0 for no limit"));
  }
}

std::int64_t StallGuard::count_launch(std::int64_t step) {
  std::int64_t stored_step = -1;
  std::int64_t launches = 0;
  {
    std::ifstream file(file_);
    std::string word;
    if (!(file >> word >> stored_step >> word >> launches) || stored_step != step || launches < 0) launches = 0;
  }
  if (max_launches_ > 0 && launches >= max_launches_) {
    throw Error(ErrorKind::do_not_requeue,
                text("no progress: ", launches, " launches in a row began at step ", step,
                     " and none got as far as a save (--max-restarts-without-progress ", max_launches_,
                     "); look for the cause in the log, save more often or ask for more time, then remove ",
                     file_.string(), " to try again"));
  }
  ++launches;
  // Written whole beside it, then renamed: a launch that is killed here leaves the old count.
  std::filesystem::path fresh = file_;
  fresh += ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << "step " << step << " launches " << launches << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(fresh, file_, error);
  if (!file || error) {
    throw Error(ErrorKind::failed, text("the count of launches cannot be written to ", file_.string(), " (",
                                        error ? error.message() : "no space or no permission",
                                        "): make the checkpoint folder writable"));
  }
  return launches;
}

}  // namespace lockstep
