#include "io/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "io/posix_file.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {

namespace {

std::string holder_of(int descriptor) {
  std::array<char, 512> buffer = {};
  const ssize_t count = ::pread(descriptor, buffer.data(), buffer.size() - 1, 0);
  std::string holder(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder.empty() ? "an unnamed process" : holder;
}

std::string this_process() {
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  std::string out = text("process ", ::getpid(), " on ", host.data());
  if (const char* job = std::getenv("SLURM_JOB_ID")) out += text(", Slurm job ", job);
  return out + "\n";
}

}  // namespace

RunLock::RunLock(const std::string& folder) {
  const std::string path = folder + "/lockstep.lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_system_failure("open", path, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;  // no locks here
    const std::string holder = holder_of(descriptor_);
    ::close(descriptor_);
    throw Error(ErrorKind::usage, text("the folder '", folder, "' belongs to another run that is still alive (",
                                       holder, "): wait for it, stop it, or give this run a folder of its own"));
  }
  is_held_ = true;
  const std::string owner = this_process();
  // The text is for people; a run goes on without it.
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, owner.data(), owner.size(), 0) < 0) return;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace lockstep
