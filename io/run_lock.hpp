#pragma once

#include <string>

namespace lockstep {

/// Keeps two runs out of one folder. Held until it goes, or its process dies, however it dies.
///
/// A lock on the file `lockstep.lock` in the folder (flock); the file's text says who holds it, for people. Taken by
/// rank 0 alone. Throws Error that names the holder when another process has it. On a file system without locks
/// is_held() is false: the caller says so and goes on.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  int descriptor_ = -1;
  bool is_held_ = false;
};

}  // namespace lockstep
