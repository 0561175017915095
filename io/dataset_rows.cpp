#include "io/dataset_rows.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <numeric>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kLargestMappedRowBytes = std::size_t{1} << 15;  // beyond it a pread costs no more
constexpr std::size_t kLargestReadBytes = std::size_t{1} << 30;       // larger ones have broken I/O stacks
constexpr std::size_t kSmallBlockBytes = std::size_t{1} << 18;        // of rows that are in no chunks

std::string system_text(int code) { return std::generic_category().message(code); }

/// An open file and, perhaps, a mapping of a part of it.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) {
      throw Error(ErrorKind::usage, text("cannot open the data file \"", path, "\" (", system_text(errno),
                                         "): check the path and its permissions"));
    }
  }
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;
  ~ReadOnlyFile() {
    if (mapping_ != MAP_FAILED) ::munmap(mapping_, mapping_bytes_);
    ::close(fd_);
  }

  std::int64_t size() const {
    struct stat facts {};
    return ::fstat(fd_, &facts) == 0 ? static_cast<std::int64_t>(facts.st_size) : -1;
  }

  /// The bytes from `offset` on, or null where the file system cannot map files.
  const std::byte* map(std::int64_t offset, std::int64_t num_bytes) {
    const std::int64_t page = ::sysconf(_SC_PAGESIZE);
    const std::int64_t begin = offset / page * page;
    mapping_bytes_ = static_cast<std::size_t>(offset + num_bytes - begin);
    mapping_ = ::mmap(nullptr, mapping_bytes_, PROT_READ, MAP_SHARED, fd_, begin);
    return mapping_ == MAP_FAILED ? nullptr : static_cast<const std::byte*>(mapping_) + (offset - begin);
  }

  /// Reads all of it, or returns false with errno set (0: the file ends too early).
  bool read(std::int64_t offset, std::size_t num_bytes, std::byte* out) const {
    while (num_bytes > 0) {
      const ssize_t got = ::pread(fd_, out, std::min(num_bytes, kLargestReadBytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) errno = 0;
      if (got <= 0) return false;
      offset += got;
      num_bytes -= static_cast<std::size_t>(got);
      out += got;
    }
    return true;
  }

 private:
  int fd_;
  void* mapping_ = MAP_FAILED;
  std::size_t mapping_bytes_ = 0;
};

class ContiguousRows final : public DatasetRows {
 public:
  ContiguousRows(RowLayout layout, std::int64_t offset)
      : layout_(std::move(layout)),
        offset_(offset),
        end_(offset + layout_.num_rows * static_cast<std::int64_t>(layout_.row_bytes)),
        file_(layout_.path) {
    require_whole();
    if (layout_.row_bytes <= kLargestMappedRowBytes) mapped_ = file_.map(offset_, end_ - offset_);
  }

  void gather(std::span<const std::int64_t> ids, std::byte* out) override {
    if (mapped_ != nullptr) {
      require_whole();  // touching a mapped page past the end would kill the process
      for (const std::int64_t id : ids) {
        std::memcpy(out, mapped_ + static_cast<std::size_t>(id) * layout_.row_bytes, layout_.row_bytes);
        out += layout_.row_bytes;
      }
      return;
    }
    for (std::size_t first = 0; first < ids.size();) {  // rows that follow each other are one read
      std::size_t next = first + 1;
      while (next < ids.size() && ids[next] == ids[next - 1] + 1) ++next;
      const std::size_t num_bytes = (next - first) * layout_.row_bytes;
      const std::int64_t begin = offset_ + ids[first] * static_cast<std::int64_t>(layout_.row_bytes);
      if (!file_.read(begin, num_bytes, out)) {
        const int code = errno;
        require_whole();
        throw Error(ErrorKind::failed, text("cannot read samples ", ids[first], " to ", ids[next - 1], " of \"",
                                            layout_.name, "\" in the data file \"", layout_.path, "\" (",
                                            system_text(code), "): check the file system, then start again"));
      }
      out += num_bytes;
      first = next;
    }
  }

 private:
  void require_whole() const {
    const std::int64_t size = file_.size();
    if (size >= end_) return;
    throw Error(ErrorKind::do_not_requeue,
                text("the data file \"", layout_.path, "\" is cut short (its data set \"", layout_.name,
                     "\" ends at byte ", end_, ", the file at byte ", size, "): copy or make the file again"));
  }

  RowLayout layout_;
  std::int64_t offset_;
  std::int64_t end_;
  ReadOnlyFile file_;
  const std::byte* mapped_ = nullptr;
};

class BlockedRows final : public DatasetRows {
 public:
  BlockedRows(RowLayout layout, Hdf5Handle dataset, std::size_t cache_bytes)
      : layout_(std::move(layout)), dataset_(std::move(dataset)) {
    const Hdf5Handle space(H5Dget_space(dataset_.get()), what());
    extents_.resize(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space.get())));
    H5Sget_simple_extent_dims(space.get(), extents_.data(), nullptr);
    const auto fit = static_cast<std::int64_t>(std::max<std::size_t>(1, cache_bytes / layout_.row_bytes));
    rows_per_block_ = std::min({fit, natural_block_rows(), layout_.num_rows});
    max_blocks_ = static_cast<std::size_t>(std::max<std::int64_t>(1, fit / rows_per_block_));
  }

  void gather(std::span<const std::int64_t> ids, std::byte* out) override {
    order_.resize(ids.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // Block by block, so that a call reads each block once however few are kept.
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return ids[a] < ids[b]; });
    for (const std::size_t i : order_) {
      const std::byte* block = find_block(ids[i] / rows_per_block_);
      const auto row = static_cast<std::size_t>(ids[i] % rows_per_block_);
      std::memcpy(out + i * layout_.row_bytes, block + row * layout_.row_bytes, layout_.row_bytes);
    }
  }

 private:
  struct Block {
    std::int64_t index = 0;
    std::vector<std::byte> bytes;
  };

  std::string what() const { return text("cannot read \"", layout_.name, "\" in \"", layout_.path, "\""); }

  std::int64_t natural_block_rows() const {
    const Hdf5Handle creation(H5Dget_create_plist(dataset_.get()), what());
    if (H5Pget_layout(creation.get()) == H5D_CHUNKED) {
      std::vector<hsize_t> chunk(extents_.size());
      H5Pget_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
      return static_cast<std::int64_t>(chunk.front());
    }
    return static_cast<std::int64_t>(std::max<std::size_t>(1, kSmallBlockBytes / layout_.row_bytes));
  }

  const std::byte* find_block(std::int64_t index) {
    const auto found = places_.find(index);
    if (found != places_.end()) {
      blocks_.splice(blocks_.begin(), blocks_, found->second);
      return blocks_.front().bytes.data();
    }
    Block block;
    if (blocks_.size() == max_blocks_) {  // the oldest block's memory is used again
      block = std::move(blocks_.back());
      places_.erase(block.index);
      blocks_.pop_back();
    }
    block.index = index;
    read_block(block);
    blocks_.push_front(std::move(block));
    places_[index] = blocks_.begin();
    return blocks_.front().bytes.data();
  }

  void read_block(Block& block) {
    const std::int64_t first = block.index * rows_per_block_;
    const std::int64_t num_rows = std::min(rows_per_block_, layout_.num_rows - first);
    block.bytes.resize(static_cast<std::size_t>(rows_per_block_) * layout_.row_bytes);
    std::vector<hsize_t> start(extents_.size(), 0);
    std::vector<hsize_t> count = extents_;
    start.front() = static_cast<hsize_t>(first);
    count.front() = static_cast<hsize_t>(num_rows);
    const Hdf5Handle type(H5Dget_type(dataset_.get()), what());
    const Hdf5Handle in_file(H5Dget_space(dataset_.get()), what());
    const Hdf5Handle in_memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), what());
    if (H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0 ||
        H5Dread(dataset_.get(), type.get(), in_memory.get(), in_file.get(), H5P_DEFAULT, block.bytes.data()) < 0) {
      throw Error(ErrorKind::failed,
                  text("cannot read samples ", first, " to ", first + num_rows - 1, " of \"", layout_.name,
                       "\" in the data file \"", layout_.path, "\" (", hdf5_failure(),
                       "): when a filter is missing, repack the file with `h5repack -f NONE`; "
                       "otherwise it is damaged, copy or make it again"));
    }
  }

  RowLayout layout_;
  Hdf5Handle dataset_;
  std::vector<hsize_t> extents_;
  std::int64_t rows_per_block_ = 1;
  std::size_t max_blocks_ = 1;
  std::list<Block> blocks_;  // the newest used first
  std::unordered_map<std::int64_t, std::list<Block>::iterator> places_;
  std::vector<std::size_t> order_;
};

}  // namespace

std::unique_ptr<DatasetRows> make_contiguous_rows(RowLayout layout, std::int64_t offset) {
  return std::make_unique<ContiguousRows>(std::move(layout), offset);
}

std::unique_ptr<DatasetRows> make_blocked_rows(RowLayout layout, Hdf5Handle dataset, std::size_t cache_bytes) {
  return std::make_unique<BlockedRows>(std::move(layout), std::move(dataset), cache_bytes);
}

}  // namespace lockstep
