#include "io/checkpoint_file.hpp"

#include <algorithm>
#include <vector>

#include "io/catalogue_reader.hpp"
#include "io/checkpoint_skeleton.hpp"
#include "io/digest.hpp"
#include "io/hdf5_handle.hpp"

namespace lockstep {

namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{4} << 20;

CheckpointHeader read_header(const PosixFile& file) {
  std::string bytes(header_bytes, '\0');
  bytes.resize(file.read_at(std::as_writable_bytes(std::span(bytes.data(), bytes.size())), 0));
  const CheckpointHeader header = decode_header(bytes, file.path());
  if (file.size() != header.file_bytes) {
    throw DamagedCheckpoint(
        text("'", file.path(), "' has ", file.size(), " bytes, ", header.file_bytes, " were written"));
  }
  if (metadata_digest(file.path(), header) != header.metadata_digest) {
    throw DamagedCheckpoint(
        text("'", file.path(), "' has changed names, shapes or attributes (their digest differs)"));
  }
  return header;
}

std::string index_key(std::string_view section, std::string_view name) {
  std::string key(section);
  key += '\0';
  return key += name;
}

void check_consistency(const Catalogue& catalogue, const std::string& path) {
  const CheckpointHeader& header = catalogue.header;
  std::vector<StoredTensor> tensors = catalogue.tensors;
  std::vector<BlockRow> rows = cut_into_blocks(tensors);
  const bool same_rows = std::equal(rows.begin(), rows.end(), catalogue.blocks.begin(), catalogue.blocks.end(),
                                    [](const BlockRow& expected, const BlockRow& stored) {
                                      return expected.tensor == stored.tensor &&
                                             expected.first_element == stored.first_element &&
                                             expected.num_bytes == stored.num_bytes;
                                    });
  const bool within = std::all_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
    return tensor.num_bytes() == 0 ||
           (tensor.offset >= header.data_begin && tensor.num_bytes() <= header.data_end - tensor.offset);
  });
  if (!same_rows || !within || state_digest(catalogue) != header.state_digest) {
    throw DamagedCheckpoint(text("'", path, "' holds another state than was written (its digest differs)"));
  }
}

}  // namespace

CheckpointFile::CheckpointFile(const std::string& path) : file_(path, FileAccess::read) {
  refuse_open_for_writing(path, file_.descriptor());
  catalogue_.header = read_header(file_);
  catalogue_.blocks.resize(catalogue_.header.num_blocks);
  read_exactly(std::as_writable_bytes(std::span(catalogue_.blocks)), catalogue_.header.blocks_begin);
  read_hdf5_catalogue(path, catalogue_);
  check_consistency(catalogue_, path);
  index_names();
}

CheckpointFile::CheckpointFile(const std::string& path, Catalogue catalogue)
    : file_(path, FileAccess::read), catalogue_(std::move(catalogue)) {
  index_names();
}

std::optional<std::size_t> CheckpointFile::find(std::string_view section, std::string_view name) const {
  const auto found = index_.find(index_key(section, name));
  if (found == index_.end()) return {};
  return found->second;
}

void CheckpointFile::read(std::size_t tensor, std::int64_t begin, std::int64_t end, std::byte* out) const {
  const StoredTensor& stored = catalogue_.tensors.at(tensor);
  if (begin < 0 || begin > end || end > stored.info.num_elements()) {
    throw Error(ErrorKind::failed, text("elements ", begin, " to ", end, " of tensor '", stored.info.name,
                                        "' were asked for (it has ", stored.info.num_elements(), ")"));
  }
  const std::size_t element_bytes = size_of(stored.info.type);
  read_exactly(std::span(out, static_cast<std::size_t>(end - begin) * element_bytes),
               stored.offset + static_cast<std::uint64_t>(begin) * element_bytes);
}

void CheckpointFile::verify(std::uint64_t begin_block, std::uint64_t end_block,
                            const std::function<void(std::uint64_t)>& on_progress) const {
  const std::vector<BlockRow>& rows = catalogue_.blocks;
  std::vector<std::byte> window;
  for (std::uint64_t next = begin_block; next < end_block;) {
    const std::uint64_t offset = offset_of(rows[next]);
    std::uint64_t last = next;
    std::uint64_t bytes = 0;
    while (last < end_block && offset_of(rows[last]) == offset + bytes &&
           (last == next || bytes + rows[last].num_bytes <= window_bytes)) {
      bytes += rows[last++].num_bytes;
    }
    if (bytes <= window_bytes) {
      window.resize(bytes);
      read_exactly(window, offset);
      std::uint64_t at = 0;
      for (std::uint64_t i = next; i < last; at += rows[i++].num_bytes) {
        compare(rows[i], digest_of(std::span(window).subspan(at, rows[i].num_bytes)));
      }
    } else {
      Digest digest;
      for (std::uint64_t at = 0; at < bytes; at += window_bytes) {
        window.resize(std::min(window_bytes, bytes - at));
        read_exactly(window, offset + at);
        digest.add_bytes(window);
      }
      compare(rows[next], digest.value());
    }
    if (on_progress) on_progress(bytes);
    next = last;
  }
}

void CheckpointFile::index_names() {
  for (std::size_t i = 0; i < catalogue_.tensors.size(); ++i) {
    const TensorInfo& info = catalogue_.tensors[i].info;
    index_[index_key(info.section, info.name)] = i;
  }
  for (const TensorAlias& alias : catalogue_.aliases) {
    const auto target = find(alias.section, alias.name);
    if (target) index_[index_key(alias.section, alias.alias)] = *target;
  }
}

std::uint64_t CheckpointFile::offset_of(const BlockRow& row) const {
  const StoredTensor& tensor = catalogue_.tensors[row.tensor];
  return tensor.offset + row.first_element * size_of(tensor.info.type);
}

void CheckpointFile::read_exactly(std::span<std::byte> bytes, std::uint64_t offset) const {
  if (file_.read_at(bytes, offset) != bytes.size()) {
    throw DamagedCheckpoint(text("'", path(), "' is cut: it ends before byte ", offset + bytes.size()));
  }
}

void CheckpointFile::compare(const BlockRow& row, std::uint64_t found) const {
  if (found == row.digest) return;
  const TensorInfo& info = catalogue_.tensors[row.tensor].info;
  throw DamagedCheckpoint(text("'", path(), "' has changed elements in tensor '", info.name, "' of section '",
                               info.section, "' (elements ", row.first_element, " to ",
                               row.first_element + row.num_bytes / size_of(info.type) - 1, ": digest ",
                               hexadecimal(found), ", stored ", hexadecimal(row.digest), ")"));
}

}  // namespace lockstep
