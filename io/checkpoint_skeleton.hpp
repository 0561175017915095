#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint_catalogue.hpp"

namespace lockstep {

/// The HDF5 part of the checkpoints of one run, without elements: made once by rank 0, stamped for each save.
///
/// Making it costs HDF5 about a fifth of a millisecond a tensor; stamping copies its bytes and adds the attributes
/// of the step. All tensors are contiguous, allocated early and never filled, one right after the other in the
/// order given, from a disk block's begin on: so each rank's part of a section is one range of the file.
/// No rank but the one that makes it may use it, and no other thread than the main one.
class CheckpointSkeleton {
 public:
  /// Makes it by way of a scratch file in `folder`. Throws Error when two names collide.
  CheckpointSkeleton(const std::string& folder, std::vector<StoredTensor> tensors, std::vector<TensorAlias> aliases,
                     const std::vector<LaunchRecord>& launches);

  /// The tensors, with their offsets in the file.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  /// Where the data and the rows are; the rest of the header belongs to a stamp.
  const CheckpointHeader& layout() const { return layout_; }

  /// Creates `path`, with room for all of it on the disk, and returns its header but for the state's digest.
  /// A leftover of that name is removed first.
  CheckpointHeader stamp(const std::string& path, std::int64_t step, const AttributeTree& attributes) const;

 private:
  struct Extent {
    std::uint64_t offset = 0;
    std::string bytes;
  };

  std::vector<StoredTensor> tensors_;
  CheckpointHeader layout_;
  std::vector<Extent> metadata_;
};

/// The digest of all bytes of a checkpoint file that are neither header, nor data, nor rows.
/// Throws DamagedCheckpoint when the file is shorter than the header says.
std::uint64_t metadata_digest(const std::string& path, const CheckpointHeader& header);

}  // namespace lockstep
