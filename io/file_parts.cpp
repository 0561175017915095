#include "io/file_parts.hpp"

#include <algorithm>
#include <limits>

#include "io/bytes.hpp"
#include "io/digest.hpp"

namespace lockstep {

namespace {

std::uint64_t round_down(std::uint64_t offset) { return offset / disk_block_bytes * disk_block_bytes; }
std::uint64_t round_up(std::uint64_t offset) { return round_down(offset + disk_block_bytes - 1); }

// The piece of a part within [begin, end), if any.
FileRange clipped(const FilePart& part, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t from = std::max(part.offset, begin);
  const std::uint64_t to = std::min(part.offset + part.num_bytes, end);
  if (from >= to) return {};
  return {from, to - from, part.data + (from - part.offset)};
}

// Calls `work` for each part with the whole disk blocks, [begin, end), of the run of parts that it belongs to.
template <class Work>
void for_each_in_run(const std::vector<FilePart>& parts, const Work& work) {
  for (std::size_t next = 0; next < parts.size();) {
    std::size_t last = next;
    std::uint64_t end = parts[next].offset;
    while (last < parts.size() && parts[last].offset == end) end += parts[last++].num_bytes;
    const std::uint64_t inner_begin = std::min(round_up(parts[next].offset), end);
    const std::uint64_t inner_end = std::max(round_down(end), inner_begin);
    for (; next < last; ++next) work(parts[next], inner_begin, inner_end);
  }
}

void add_fragment(ByteWriter& writer, const FileRange& range) {
  if (range.num_bytes == 0) return;
  writer.add(range.offset);
  writer.add(std::string(reinterpret_cast<const char*>(range.data), range.num_bytes));
}

}  // namespace

std::vector<FilePart> parts_of(const Snapshot& snapshot, const FileLayout& layout) {
  std::vector<FilePart> parts;
  for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const TensorPart& part = snapshot.tensors[i];
    const StoredTensor& stored = layout.tensors.at(i);
    if (part.begin >= part.end) continue;
    const std::size_t element_bytes = size_of(part.info.type);
    const DigestBlocks blocks = stored.blocks();
    const auto first = static_cast<std::uint64_t>(blocks.index_at(part.begin, part.info.name));
    const auto last = static_cast<std::uint64_t>(blocks.index_at(part.end, part.info.name));
    FilePart& added = parts.emplace_back();
    added.offset = stored.offset + static_cast<std::uint64_t>(part.begin) * element_bytes;
    added.num_bytes = static_cast<std::uint64_t>(part.end - part.begin) * element_bytes;
    added.data = part.data;
    added.first_row = stored.first_block + first;
    added.num_rows = last - first;
  }
  std::sort(parts.begin(), parts.end(), [](const FilePart& a, const FilePart& b) { return a.offset < b.offset; });
  return parts;
}

std::vector<std::uint64_t> digests_of(const std::vector<FilePart>& parts, const std::vector<BlockRow>& rows) {
  std::vector<std::uint64_t> digests;
  for (const FilePart& part : parts) {
    const std::byte* at = part.data;
    for (std::uint64_t i = part.first_row; i < part.first_row + part.num_rows; ++i) {
      digests.push_back(digest_of(std::span(at, rows[i].num_bytes)));
      at += rows[i].num_bytes;
    }
  }
  return digests;
}

std::vector<FileRange> whole_blocks_of(const std::vector<FilePart>& parts) {
  std::vector<FileRange> ranges;
  for_each_in_run(parts, [&](const FilePart& part, std::uint64_t inner_begin, std::uint64_t inner_end) {
    const FileRange inner = clipped(part, inner_begin, inner_end);
    if (inner.num_bytes > 0) ranges.push_back(inner);
  });
  return ranges;
}

std::string packed_fragments_of(const std::vector<FilePart>& parts) {
  ByteWriter writer;
  for_each_in_run(parts, [&](const FilePart& part, std::uint64_t inner_begin, std::uint64_t inner_end) {
    add_fragment(writer, clipped(part, 0, inner_begin));
    add_fragment(writer, clipped(part, inner_end, std::numeric_limits<std::uint64_t>::max()));
  });
  return writer.take();
}

std::vector<Fragment> unpack_fragments(std::string_view packed) {
  std::vector<Fragment> fragments;
  for (ByteReader reader(packed); !reader.at_end();) {
    Fragment& fragment = fragments.emplace_back();
    fragment.offset = reader.take<std::uint64_t>();
    fragment.bytes = reader.take<std::string>();
  }
  return fragments;
}

}  // namespace lockstep
