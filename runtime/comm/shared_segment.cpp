#include "runtime/comm/shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

/// What the other ranks need to find the file of rank 0, and to know that it is the right one.
struct Address {
  std::int64_t process = 0;
  std::int64_t file = 0;
  std::uint64_t token = 0;
};

Error failure(const char* what, int code) {
  return Error(ErrorKind::failed, text(what, " failed (", std::strerror(code),
                                       "): let the ranks of a node share one process name space, or use the MPI "
                                       "exchange"));
}

/// The first page holds the token; what the owner asked for follows.
std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void allocate(int file, std::size_t begin, std::size_t num_bytes) {
  int code = 0;
  do {
    code = ::posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(num_bytes));
  } while (code == EINTR);  // a request to stop may arrive in the middle
  if (code != 0) throw failure("reserving shared memory", code);
}

std::byte* map(int file, std::size_t num_bytes) {
  void* const start = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (start == MAP_FAILED) throw failure("mapping shared memory", errno);
  return static_cast<std::byte*>(start);
}

}  // namespace

SharedSegment::SharedSegment(Communicator& communicator, std::size_t num_bytes, std::size_t max_bytes)
    : num_bytes_(num_bytes) {
  const std::size_t total = page_bytes() + num_bytes;
  const bool is_first = communicator.rank() == 0;
  Address address;
  std::byte* start = nullptr;
  const auto release = [&] {
    if (start != nullptr) ::munmap(start, total);
    if (file_ >= 0) ::close(file_);
  };
  try {
    agree(communicator, [&] {
      if (num_bytes > max_bytes) {
        throw Error(ErrorKind::failed, text("the ranks of a node need ", num_bytes, " bytes of shared memory (",
                                            max_bytes, " may be used): allow more, or use the MPI exchange"));
      }
      if (!is_first) return;
      file_ = ::memfd_create("lockstep", MFD_CLOEXEC);
      if (file_ < 0) throw failure("making shared memory", errno);
      if (::ftruncate(file_, static_cast<off_t>(total)) != 0) throw failure("sizing shared memory", errno);
      allocate(file_, 0, page_bytes());
      start = map(file_, total);
      std::random_device random;
      address = {::getpid(), file_, (std::uint64_t{random()} << 32) | random()};
      std::memcpy(start, &address.token, sizeof address.token);
    });
    communicator.broadcast(std::as_writable_bytes(std::span(&address, 1)), 0);
    agree(communicator, [&] {
      if (is_first) return;
      const std::string path = text("/proc/", address.process, "/fd/", address.file);
      file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (file_ < 0) throw failure("opening the shared memory of the node's first rank", errno);
      struct stat status = {};
      if (::fstat(file_, &status) != 0) throw failure("examining shared memory", errno);
      std::uint64_t token = 0;
      if (static_cast<std::size_t>(status.st_size) == total) {
        start = map(file_, total);
        std::memcpy(&token, start, sizeof token);
      }
      // Ranks in separate containers may find another process of that number.
      if (token != address.token) throw failure("finding the shared memory of the node's first rank", ESRCH);
    });
  } catch (...) {
    release();
    throw;
  }
  data_ = start + page_bytes();
}

SharedSegment::~SharedSegment() {
  ::munmap(data_ - page_bytes(), page_bytes() + num_bytes_);
  ::close(file_);
}

void SharedSegment::reserve(std::size_t begin, std::size_t num_bytes) const {
  if (num_bytes != 0) allocate(file_, page_bytes() + begin, num_bytes);
}

}  // namespace lockstep
