#include "io/staging_buffer.hpp"

#include <linux/mman.h>  // MADV_COLLAPSE, which older C libraries do not know
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
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

void use_large_pages(std::vector<std::span<const std::byte>> pieces) {
  constexpr std::uintptr_t page_bytes = 4096;
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
  for (std::size_t next = 0; next < pieces.size();) {
    const std::byte* const begin = pieces[next].data();
    const std::byte* end = begin + pieces[next].size();
    while (++next < pieces.size() && pieces[next].data() <= end + page_bytes) {
      end = std::max(end, pieces[next].data() + pieces[next].size());
    }
    const std::uintptr_t to_page = (page_bytes - reinterpret_cast<std::uintptr_t>(begin) % page_bytes) % page_bytes;
    const auto num_bytes = static_cast<std::uintptr_t>(end - begin);
    if (num_bytes <= to_page) continue;
    void* const memory = const_cast<std::byte*>(begin) + to_page;
    ::madvise(memory, num_bytes - to_page, MADV_HUGEPAGE);
#ifdef MADV_COLLAPSE
    ::madvise(memory, num_bytes - to_page, MADV_COLLAPSE);
#endif
  }
}

}  // namespace lockstep
