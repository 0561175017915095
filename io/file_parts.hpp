#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint_catalogue.hpp"
#include "runtime/plan/communicator.hpp"

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

/// Bytes of a disk block that several ranks share; the block's owner holds them all.
struct Fragment {
  std::uint64_t offset = 0;
  std::string bytes;
};

/// What one rank writes: no disk block is written by two.
struct OwnedBlocks {
  std::vector<FileRange> ranges;
  std::vector<Fragment> fragments;
};

/// The whole disk blocks of the parts.
std::vector<FileRange> whole_blocks_of(const std::vector<FilePart>& parts);

/// **Collective.** Hands the ends of the parts, where they do not fill a disk block, to the block's owner: the
/// lowest rank that has a byte in it, or rank 0 at both ends of the data, where metadata may be. Returns this rank's.
std::vector<Fragment> share_out_fragments(Communicator& communicator, const std::vector<FilePart>& parts,
                                          const CheckpointHeader& header);

}  // namespace lockstep
