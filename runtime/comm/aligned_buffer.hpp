#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace lockstep {

/// Private memory on a page boundary, zero and already mapped at first. A value that is moved, never copied.
class AlignedBuffer {
 public:
  static constexpr std::size_t alignment = 4096;

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t num_bytes)
      : bytes_(
            static_cast<std::byte*>(std::aligned_alloc(alignment, (num_bytes + alignment) / alignment * alignment))),
        num_bytes_(num_bytes) {
    if (bytes_ == nullptr) throw std::bad_alloc();
    std::memset(bytes_.get(), 0, num_bytes);
  }

  std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return num_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t num_bytes_ = 0;
};

}  // namespace lockstep
