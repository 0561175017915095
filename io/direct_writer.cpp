#include "io/direct_writer.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

#include "runtime/plan/copy_past_caches.hpp"

namespace lockstep {

namespace {

// Bytes that follow each other in the file, from one place in memory or from several.
struct Transfer {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
  std::vector<std::span<const std::byte>> pieces;

  void add(std::span<const std::byte> bytes) {
    if (!pieces.empty() && pieces.back().data() + pieces.back().size() == bytes.data()) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + bytes.size()};
    } else {
      pieces.push_back(bytes);
    }
    num_bytes += bytes.size();
  }
};

// Cuts ranges into transfers, none larger than a buffer, each on disk blocks.
std::vector<Transfer> cut_into_transfers(const std::vector<FileRange>& ranges) {
  std::vector<Transfer> out;
  for (FileRange range : ranges) {
    while (range.num_bytes > 0) {
      const bool follows = !out.empty() && out.back().offset + out.back().num_bytes == range.offset;
      if (!follows || out.back().num_bytes == TransferBuffers::num_bytes) out.push_back({range.offset, 0, {}});
      const std::uint64_t count = std::min(range.num_bytes, TransferBuffers::num_bytes - out.back().num_bytes);
      out.back().add({range.data, count});
      range.offset += count;
      range.data += count;
      range.num_bytes -= count;
    }
  }
  return out;
}

void write(const Transfer& transfer, PosixFile& file, const StagingBuffer& buffer) {
  const auto place = reinterpret_cast<std::uintptr_t>(transfer.pieces.front().data()) % disk_block_bytes;
  if (transfer.pieces.size() == 1 && place == 0) {
    file.write_at(transfer.pieces.front(), transfer.offset);
    return;
  }
  std::byte* next = buffer.data();
  for (const std::span<const std::byte> piece : transfer.pieces) {
    copy_past_caches(next, piece);
    next += piece.size();
  }
  file.write_at(std::span(buffer.data(), transfer.num_bytes), transfer.offset);
}

// Hands out transfers to the threads that make them, until there is none left or one has failed.
class Queue {
 public:
  Queue(PosixFile& file, const std::vector<Transfer>& transfers, const std::function<void()>& on_half)
      : file_(file), transfers_(transfers), on_half_(on_half) {}

  void work_off(const StagingBuffer& buffer) {
    try {
      for (std::size_t i = next_++; i < transfers_.size(); i = next_++) {
        if (i == transfers_.size() / 2) on_half_();
        write(transfers_[i], file_, buffer);
      }
    } catch (...) {
      next_ = transfers_.size();
      throw;
    }
  }

 private:
  PosixFile& file_;
  const std::vector<Transfer>& transfers_;
  const std::function<void()>& on_half_;
  std::atomic<std::size_t> next_ = 0;
};

}  // namespace

void write_directly(const std::string& path, const std::vector<FileRange>& ranges, FileAccess access,
                    TransferBuffers& buffers, const std::function<void()>& on_half,
                    const std::function<void()>& on_written) {
  PosixFile file(path, access);
  const std::vector<Transfer> transfers = cut_into_transfers(ranges);
  if (transfers.empty()) on_half();
  Queue queue(file, transfers, on_half);
  {
    std::array<std::future<void>, TransferBuffers::count> threads;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      threads[i] = std::async(std::launch::async, [&, i] { queue.work_off(buffers.each[i]); });
    }
    for (std::future<void>& thread : threads) thread.get();
  }
  on_written();
  file.sync();
}

}  // namespace lockstep
