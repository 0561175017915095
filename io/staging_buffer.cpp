#include "io/staging_buffer.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "runtime/plan/error.hpp"

namespace lockstep {

StagingBuffer::StagingBuffer(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  void* const memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::failed,
                text("no memory for a copy of this rank's part of the state (", num_bytes,
                     " bytes: ", std::strerror(errno), "): save without the copy (no --async-save)"));
  }
  data_ = static_cast<std::byte*>(memory);
  ::madvise(memory, num_bytes, MADV_HUGEPAGE);  // large pages where there are some: cheaper to copy to and to write
  std::memset(memory, 0, num_bytes);
}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

StagingBuffer::~StagingBuffer() {
  if (data_ != nullptr) ::munmap(data_, num_bytes_);
}

}  // namespace lockstep
