#include "io/direct_writer.hpp"

#include <algorithm>
#include <cstring>
#include <future>

namespace lockstep {

namespace {

constexpr std::uint64_t window_bytes = TransferBuffers::num_bytes;

bool is_aligned(const FileRange& range) {
  return reinterpret_cast<std::uintptr_t>(range.data) % disk_block_bytes == 0 &&
         range.offset % disk_block_bytes == 0 && range.num_bytes % disk_block_bytes == 0;
}

// Ranges that follow each other in the file and in memory are one.
std::vector<FileRange> joined(const std::vector<FileRange>& ranges) {
  std::vector<FileRange> out;
  for (const FileRange& range : ranges) {
    if (!out.empty() && out.back().offset + out.back().num_bytes == range.offset &&
        out.back().data + out.back().num_bytes == range.data) {
      out.back().num_bytes += range.num_bytes;
    } else {
      out.push_back(range);
    }
  }
  return out;
}

// Collects ranges that follow each other in the file until there is enough for a large transfer. One buffer is
// filled while the other is written.
class Window {
 public:
  Window(PosixFile& file, TransferBuffers& buffers) : file_(file), buffers_(buffers) {}

  void add(FileRange range) {
    if (range.offset != offset_ + num_bytes_) flush();
    while (range.num_bytes > 0) {
      if (num_bytes_ == 0) offset_ = range.offset;
      const std::uint64_t count = std::min(range.num_bytes, window_bytes - num_bytes_);
      std::memcpy(buffers_.filling.data() + num_bytes_, range.data, count);
      num_bytes_ += count;
      range.offset += count;
      range.data += count;
      range.num_bytes -= count;
      if (num_bytes_ == window_bytes) flush();
    }
  }

  void flush() {
    wait();
    if (num_bytes_ == 0) return;
    std::swap(buffers_.filling, buffers_.writing);
    transfer_ = std::async(std::launch::async, [this, bytes = std::span(buffers_.writing.data(), num_bytes_),
                                                at = offset_] { file_.write_at(bytes, at); });
    num_bytes_ = 0;
  }

  /// Returns when all that was flushed is written; throws what failed.
  void wait() {
    if (transfer_.valid()) transfer_.get();
  }

 private:
  PosixFile& file_;
  TransferBuffers& buffers_;
  std::uint64_t offset_ = 0;
  std::uint64_t num_bytes_ = 0;
  std::future<void> transfer_;  // last: goes first, and waits
};

std::uint64_t total_bytes(const std::vector<FileRange>& ranges) {
  std::uint64_t total = 0;
  for (const FileRange& range : ranges) total += range.num_bytes;
  return total;
}

}  // namespace

void write_directly(const std::string& path, const OwnedBlocks& blocks, FileAccess access, TransferBuffers& buffers,
                    const std::function<void()>& on_half, const std::function<void()>& on_written) {
  PosixFile cached(path, FileAccess::write);
  for (const Fragment& fragment : blocks.fragments) {
    cached.write_at(std::as_bytes(std::span(fragment.bytes.data(), fragment.bytes.size())), fragment.offset);
  }
  PosixFile file(path, access);
  Window window(file, buffers);
  const std::uint64_t half = total_bytes(blocks.ranges) / 2;
  std::uint64_t done = 0;
  bool half_was_told = false;
  for (const FileRange& range : joined(blocks.ranges)) {
    if (done >= half && !half_was_told) {
      on_half();
      half_was_told = true;
    }
    if (is_aligned(range) && range.num_bytes >= window_bytes) {
      window.flush();
      window.wait();
      file.write_at(std::span(range.data, range.num_bytes), range.offset);
    } else {
      window.add(range);
    }
    done += range.num_bytes;
  }
  window.flush();
  window.wait();
  if (!half_was_told) on_half();
  on_written();
  file.sync();
}

}  // namespace lockstep
