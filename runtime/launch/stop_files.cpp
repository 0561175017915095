#include "runtime/launch/stop_files.hpp"

#include <chrono>
#include <fstream>
#include <system_error>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StopFiles::StopFiles(std::filesystem::path folder, double poll_seconds)
    : folder_(std::move(folder)), poll_seconds_(poll_seconds) {
  halt_.path = folder_ / "HALT";
  save_.path = folder_ / "SAVE";
}

bool StopFiles::take_halt() { return take(halt_); }

bool StopFiles::take_save() { return take(save_); }

bool StopFiles::take(Request& request) {
  const double now = steady_seconds();
  if (now < request.next_poll) return false;
  request.next_poll = now + poll_seconds_;
  std::error_code error;
  if (std::filesystem::remove(request.path, error)) {
    request.stuck = false;
    return true;
  }
  // A request that cannot be taken away is obeyed once; then it must go before it counts again.
  const bool there = error && std::filesystem::exists(std::filesystem::symlink_status(request.path, error));
  return std::exchange(request.stuck, there) != there && there;
}

void StopFiles::mark_done(const std::string& line) {
  const std::filesystem::path done = folder_ / "DONE";
  std::filesystem::path fresh = done;
  fresh += ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << line << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(fresh, done, error);
  if (!file || error) {
    throw Error(ErrorKind::failed, text("the run is complete, but ", done.string(), " cannot be written (",
                                        error ? error.message() : "no space or no permission",
                                        "): make the checkpoint folder writable and launch once more"));
  }
}

void StopFiles::clear_done() {
  std::error_code ignored;  // a mark that cannot go stays until mark_done() replaces it
  std::filesystem::remove(folder_ / "DONE", ignored);
}

bool StopFiles::done() const {
  std::error_code ignored;
  return std::filesystem::exists(folder_ / "DONE", ignored);
}

}  // namespace lockstep
