#pragma once

#include <cstddef>
#include <limits>

#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// Memory that all ranks of one node see, zero at first, on a page boundary in each of them.
///
/// An anonymous file of the kernel (memfd), which the other ranks open through /proc: it has no name that a killed
/// run could leave behind, it is not bound by the size of /dev/shm (64 MB in many containers), and it counts as the
/// job's memory like any other.
///
/// Construction is **collective** over `communicator`: it succeeds on all ranks, or throws the same Error on all
/// (no such files, ranks in separate process name spaces, no memory, or more than `max_bytes`). Destruction is
/// local: the memory lives until the last rank has let go.
class SharedSegment {
 public:
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  SharedSegment(Communicator& communicator, std::size_t num_bytes, std::size_t max_bytes = unlimited);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return num_bytes_; }

  /// Local call. Gets the pages of [begin, begin + num_bytes) now, near this rank's processor. Throws Error where
  /// the machine has none left; touching them unprepared would end the program with a signal instead.
  void reserve(std::size_t begin, std::size_t num_bytes) const;

 private:
  std::size_t num_bytes_;
  std::byte* data_ = nullptr;
  int file_ = -1;
};

}  // namespace lockstep
