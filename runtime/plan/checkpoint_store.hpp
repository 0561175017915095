#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// An open, verified checkpoint. All ranks hold the same one.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  virtual const std::string& path() const = 0;
  virtual const AttributeTree& attributes() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;

  /// **Collective.** Fills the asked parts. Each part's type and shape must equal the stored ones
  /// (the caller has compared them with tensors() before, to name every difference at once).
  virtual void read(std::span<TensorPart> parts) = 0;
};

/// Where a run's checkpoints are kept. The trainer knows this interface, the file format is behind it.
///
/// A save has moments, so that it may go on while the run does: start_save() begins to take the bytes, which stay as
/// they are until wait_until_copied() returns; whenever part_is_durable() is true on all ranks (the step's scalar
/// collective carries it), commit_save() makes the next move towards the checkpoint's name. A store that writes at
/// once does everything in start_save().
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;

  /// **Collective.** The newest whole checkpoint, or null when the folder holds none at all. Throws Error when
  /// there are some and none can be believed.
  virtual std::unique_ptr<CheckpointReader> open_newest() = 0;

  /// **Collective.** Does ahead of the first save what needs names and shapes only, so that the first save stands
  /// still no longer than later ones. Optional.
  virtual void prepare(const Snapshot& /*snapshot*/) {}

  /// **Collective.** Begins to save; the snapshot itself may go, its bytes not yet. Waits for an earlier save first.
  /// A failure on any rank is known to all: it throws on all, or is reported and the run goes on, by option.
  virtual void start_save(const Snapshot& snapshot) = 0;

  /// Waits until the bytes of the snapshot that start_save() was last given may change: to be called before they do,
  /// and before they go away. A failure to copy them ends the wait, and is told by the next move. Local.
  virtual void wait_until_copied() noexcept {}

  /// Whether a save is under way. Local, and the same on all ranks.
  virtual bool is_saving() const = 0;

  /// True when a save is under way and nothing of this rank's part in the present move is left to do (done or
  /// failed). Local.
  virtual bool part_is_durable() = 0;

  /// **Collective**, after part_is_durable() was true on all ranks: agrees on what was done, and makes the next move;
  /// the last one makes the checkpoint exist. Only the start of a further save and the end of the run wait for all of
  /// them.
  virtual void commit_save() = 0;

  /// **Collective.** Waits until no save is under way. Called before the run ends or stops. False when the newest
  /// save came to nothing.
  virtual bool finish() = 0;
};

}  // namespace lockstep
