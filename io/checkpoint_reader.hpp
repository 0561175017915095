#pragma once

#include <memory>
#include <string>

#include "io/checkpoint_file.hpp"
#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// A checkpoint that all ranks hold open and that is known to be whole.
///
/// Rank 0 alone reads the catalogue, through HDF5, and sends it; the others wait for its word, not for the file
/// system. Elements are read by each rank from where they lie, without HDF5. The communicator must outlive it.
class VerifiedCheckpoint final : public CheckpointReader {
 public:
  /// **Collective.** `file` holds the same catalogue on all ranks; see open_checkpoint().
  VerifiedCheckpoint(Communicator& communicator, CheckpointFile file);

  const std::string& path() const override { return file_.path(); }
  const AttributeTree& attributes() const override { return file_.catalogue().attributes; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(std::span<TensorPart> parts) override;

  const Catalogue& catalogue() const { return file_.catalogue(); }

 private:
  Communicator& communicator_;
  CheckpointFile file_;
  std::vector<TensorInfo> tensors_;
};

/// What opening found: a whole checkpoint, or the sentence that says how it is damaged.
struct OpenedCheckpoint {
  std::unique_ptr<VerifiedCheckpoint> checkpoint;
  std::string damage;
};

/// **Collective.** Opens `path` (rank 0's counts) and verifies all of it, each rank its share of the elements.
/// Throws Error on all ranks for whatever keeps the file from being read and is no damage: a lock, permissions,
/// a later format, an I/O error.
OpenedCheckpoint try_open_checkpoint(Communicator& communicator, const std::string& path);

/// **Collective.** The same for a file that the user named: damage is an Error too.
std::unique_ptr<VerifiedCheckpoint> open_checkpoint(Communicator& communicator, const std::string& path);

}  // namespace lockstep
