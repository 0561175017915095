#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint_skeleton.hpp"
#include "io/direct_writer.hpp"
#include "io/file_parts.hpp"
#include "io/save_fault.hpp"
#include "io/staging_buffer.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// How the elements reach the file.
enum class WriterKind {
  automatic,   ///< direct on a local file system with all ranks on one node, else collective
  collective,  ///< HDF5's collective write: the reference, and for parallel file systems without local semantics
  direct       ///< each rank writes its byte ranges past HDF5, in parallel
};

/// When the elements are written.
enum class SaveTiming {
  synchronous,  ///< the run stands still
  asynchronous  ///< they are copied and written while the run goes on; the direct writer only
};

/// Writes checkpoint files, one at a time, each under a name that is not yet a checkpoint's.
///
/// start() begins one; seal(), once all ranks have written, makes the file whole; commit() gives it its name;
/// abandon() removes it. With the asynchronous timing the first two go on in the background, and is_part_done() tells
/// until when; the bytes of the snapshot are copied there too, and stay as they are until wait_until_copied()
/// returns. The communicator must outlive it.
class CheckpointWriter {
 public:
  struct Settings {
    std::string folder;
    WriterKind kind = WriterKind::direct;  ///< not automatic: see resolve_writer()
    SaveTiming timing = SaveTiming::synchronous;
    SaveFault fault;
  };

  CheckpointWriter(Communicator& communicator, Settings settings);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// **Collective.** Makes what only depends on names and shapes: the skeleton, and the memory for copies. The state
  /// of `snapshot` is moved to large pages, if it is to be copied from.
  /// `launches` (rank 0's count) go into every file from now on.
  void prepare(const Snapshot& snapshot, const std::vector<LaunchRecord>& launches);

  /// **Collective.** Creates `path` and writes, or begins to. Needs prepare() for tensors of these names and shapes.
  /// Throws Error on all ranks.
  void start(const Snapshot& snapshot, const std::string& path);

  /// Waits until the bytes of the snapshot of start() are free to change: copied, written, or given up.
  void wait_until_copied() const noexcept { is_copied_.wait(false); }

  /// Whether the next call finds nothing to wait for on this rank.
  bool is_part_done() const { return part_is_done_; }

  /// **Collective.** Waits for all ranks' parts; rank 0 then writes the disk blocks that several share, digests and
  /// header, and checks what was written, or begins to. Throws Error on all ranks when any part failed on any rank.
  void seal();

  /// **Collective.** Waits for that, and gives the file its `name`. Throws Error on all ranks.
  void commit(const std::string& name);

  /// **Collective.** Waits, then removes the file of a failed start() or commit().
  void abandon();

 private:
  struct Save;

  void build_layout(const Snapshot& snapshot, const std::vector<LaunchRecord>& launches);
  void stage(Save& save);
  void announce_copied() noexcept;
  void begin_work(std::function<void()> work);
  void finish_work();
  void write_part(Save& save);
  void write_seal(Save& save);
  void reach(SaveStage stage, std::int64_t step) const;

  Communicator& communicator_;
  Settings settings_;
  bool takes_direct_writes_ = false;
  std::uint64_t schema_ = 0;  ///< the digest of the names and shapes that layout_ is for
  FileLayout layout_;
  std::optional<CheckpointSkeleton> skeleton_;  ///< rank 0's
  std::optional<TransferBuffers> buffers_;
  StagingBuffer staging_;
  std::unique_ptr<Save> save_;
  std::atomic<bool> is_copied_ = true;
  std::atomic<bool> part_is_done_ = false;
  std::thread thread_;
};

/// **Collective.** What `automatic` means for a folder.
WriterKind resolve_writer(Communicator& communicator, const std::string& folder, WriterKind wanted);

}  // namespace lockstep
