#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/plan/error.hpp"

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
    if (bytes_ == nullptr) {
      throw Error(ErrorKind::failed, text("there is no memory for a buffer of ", num_bytes,
                                          " bytes: use fewer ranks a node, or nodes with more memory"));
    }
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
