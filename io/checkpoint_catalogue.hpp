#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint_format.hpp"
#include "io/digest_blocks.hpp"
#include "runtime/plan/attributes.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// A tensor and where it lies in a checkpoint file.
struct StoredTensor {
  TensorInfo info;
  std::uint64_t offset = 0;  ///< of its first byte in the file; 0 when it has no elements
  std::int64_t block_elements = 0;
  std::int64_t block_phase = 0;
  std::uint64_t first_block = 0;  ///< its first row in blocks_table

  std::uint64_t num_bytes() const { return static_cast<std::uint64_t>(info.num_elements()) * size_of(info.type); }
  DigestBlocks blocks() const { return DigestBlocks(info.num_elements(), block_elements, block_phase); }
};

/// One launch of the run, for people: it is no part of the state.
struct LaunchRecord {
  std::string started;         ///< UTC, "2026-11-30T14:03:00Z"
  std::int64_t from_step = 0;  ///< the steps taken when it began
  std::int64_t num_ranks = 0;
  std::string hosts;     ///< "node1 x 4, node2 x 4"
  std::string versions;  ///< of program, MPI, HDF5, ...

  friend bool operator==(const LaunchRecord&, const LaunchRecord&) = default;
};

/// Everything of a checkpoint but the elements: small enough to be held, and sent, as a whole.
struct Catalogue {
  CheckpointHeader header;
  AttributeTree attributes;
  std::vector<StoredTensor> tensors;
  std::vector<TensorAlias> aliases;
  std::vector<LaunchRecord> launches;
  std::vector<BlockRow> blocks;
};

/// The digest of the state: step, attributes, names, types, shapes, aliases, and the digests of all blocks, in one
/// order. Two checkpoints with the same one hold the same state, whatever ranks and writers made them. The attributes
/// of the group "provenance" and the launches are left out.
std::uint64_t state_digest(const Catalogue& catalogue);

/// The rows that blocks_table has for these tensors, without the digests. Sets each tensor's first_block.
std::vector<BlockRow> cut_into_blocks(std::vector<StoredTensor>& tensors);

/// A catalogue as bytes, for sending between ranks of one run; and back.
std::string pack(const Catalogue& catalogue);
Catalogue unpack_catalogue(std::string_view bytes);

}  // namespace lockstep
