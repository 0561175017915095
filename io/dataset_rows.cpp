#include "io/dataset_rows.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <vector>

#include "io/posix_file.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kLargestMappedRowBytes = std::size_t{1} << 15;  // beyond it a pread costs no more
constexpr std::size_t kSmallBlockBytes = std::size_t{1} << 18;        // of rows that are in no chunks

/// A part of a file as memory. Empty where the file system cannot map files.
class Mapping {
 public:
  Mapping(const PosixFile& file, std::int64_t begin, std::int64_t end) {
    const std::int64_t page = ::sysconf(_SC_PAGESIZE);
    const std::int64_t first_page = begin / page * page;
    num_bytes_ = static_cast<std::size_t>(end - first_page);
    memory_ = ::mmap(nullptr, num_bytes_, PROT_READ, MAP_SHARED, file.descriptor(), first_page);
    if (memory_ != MAP_FAILED) data_ = static_cast<const std::byte*>(memory_) + (begin - first_page);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, num_bytes_);
  }

  const std::byte* data() const { return data_; }

 private:
  void* memory_ = MAP_FAILED;
  std::size_t num_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

class ContiguousRows final : public DatasetRows {
 public:
  ContiguousRows(RowLayout layout, std::int64_t offset)
      : layout_(std::move(layout)),
        row_bytes_(static_cast<std::int64_t>(layout_.row_bytes)),
        begin_(offset),
        end_(offset + layout_.num_rows * row_bytes_),
        file_(layout_.path, FileAccess::read) {
    require_whole();
    if (layout_.row_bytes <= kLargestMappedRowBytes) mapping_.emplace(file_, begin_, end_);
  }

  void gather(std::span<const std::int64_t> ids, std::byte* out) override {
    require_whole();  // touching a mapped page past the file's end would kill the process
    if (mapping_ && mapping_->data() != nullptr) {
      for (const std::int64_t id : ids) {
        std::memcpy(out, mapping_->data() + id * row_bytes_, layout_.row_bytes);
        out += row_bytes_;
      }
      return;
    }
    for (std::size_t first = 0; first < ids.size();) {  // rows that follow each other are one read
      std::size_t next = first + 1;
      while (next < ids.size() && ids[next] == ids[next - 1] + 1) ++next;
      const std::span<std::byte> rows(out, (next - first) * layout_.row_bytes);
      if (file_.read_at(rows, static_cast<std::uint64_t>(begin_ + ids[first] * row_bytes_)) < rows.size()) {
        refuse();
      }
      out += rows.size();
      first = next;
    }
  }

 private:
  void require_whole() const {
    if (file_.size() < static_cast<std::uint64_t>(end_)) refuse();
  }

  [[noreturn]] void refuse() const {
    throw Error(ErrorKind::do_not_requeue,
                text("the data file \"", layout_.path, "\" is cut short (its data set \"", layout_.name,
                     "\" ends at byte ", end_, ", the file at byte ", file_.size(), "): copy or make it again"));
  }

  RowLayout layout_;
  std::int64_t row_bytes_;
  std::int64_t begin_;
  std::int64_t end_;
  PosixFile file_;
  std::optional<Mapping> mapping_;
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
