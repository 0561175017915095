#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint_catalogue.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// Where everything of a checkpoint file lies; the same on all ranks.
struct FileLayout {
  CheckpointHeader header;  ///< the places; digests and step belong to one save
  std::vector<StoredTensor> tensors;
  std::vector<BlockRow> rows;  ///< without digests
};

/// Bytes of this rank for a range of the file: whole digest blocks of one tensor.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
  const std::byte* data = nullptr;  ///< not owned
  std::uint64_t first_row = 0;      ///< in FileLayout::rows
  std::uint64_t num_rows = 0;
};

/// This rank's parts of a snapshot in the order of the file, without the empty ones.
/// Throws Error when the snapshot's tensors are not those of the layout, or a part is cut within a block.
std::vector<FilePart> parts_of(const Snapshot& snapshot, const FileLayout& layout);

/// The digests of the parts' rows, part after part.
std::vector<std::uint64_t> digests_of(const std::vector<FilePart>& parts, const std::vector<BlockRow>& rows);

/// A range of whole disk blocks that this rank alone writes, with its bytes; ranges follow each other in the file.
struct FileRange {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
  const std::byte* data = nullptr;  ///< not owned
};

/// The whole disk blocks of the parts.
std::vector<FileRange> whole_blocks_of(const std::vector<FilePart>& parts);

/// Bytes of a disk block that others have bytes in, too: other ranks, or the file's metadata.
struct Fragment {
  std::uint64_t offset = 0;
  std::string bytes;
};

/// The ends of the parts where they do not fill a disk block, packed to travel: a block is written by one rank alone.
std::string packed_fragments_of(const std::vector<FilePart>& parts);
std::vector<Fragment> unpack_fragments(std::string_view packed);

}  // namespace lockstep
