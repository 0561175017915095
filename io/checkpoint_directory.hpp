#pragma once

#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_writer.hpp"
#include "io/retention.hpp"
#include "io/run_lock.hpp"
#include "io/save_fault.hpp"
#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// What the run does when a save fails.
enum class OnSaveFailure {
  abort,      ///< the failure is thrown, on all ranks
  keep_going  ///< it is reported, and the run goes on without that checkpoint
};

/// What the user chose about checkpoints.
struct CheckpointOptions {
  std::string directory;
  WriterKind writer = WriterKind::automatic;
  SaveTiming timing = SaveTiming::synchronous;
  RetentionRule retention;
  OnSaveFailure on_save_failure = OnSaveFailure::abort;
  SaveFault inject;      ///< a drill
  std::string versions;  ///< of the program and its libraries, for the table of launches; MPI and HDF5 are added
  std::function<void(const std::string&)> report;  ///< hears warnings, on rank 0; the standard error output if empty
};

/// A folder with the checkpoints of one run: step-00000040.h5, ... and nothing else that counts.
///
/// A checkpoint exists once its name does: it is written under a temporary name, made durable, checked, renamed.
/// Files are only believed when verified, whatever their names or the link `latest` say. One run at a time: rank 0
/// holds the folder's lock while the object lives. Rank 0 alone reads the folder and decides.
/// The communicator must outlive it. The constructor is **collective**, as are all calls but wait_until_copied(),
/// is_saving() and part_is_durable().
class CheckpointDirectory final : public CheckpointStore {
 public:
  /// Creates the folder when it is missing, locks it, removes leftovers of unfinished saves. Throws Error on all
  /// ranks when it cannot be used, another run has it, or the options make no sense.
  CheckpointDirectory(Communicator& communicator, CheckpointOptions options);
  ~CheckpointDirectory() override;

  std::unique_ptr<CheckpointReader> open_newest() override;

  /// **Collective.** A run that starts from the checkpoint `path`, of this folder or another: that one, or, where the
  /// run has gone on from it already, the folder's newest, so that a requeue loses nothing. Throws Error(usage) when
  /// the folder's newest does not come from it.
  std::unique_ptr<CheckpointReader> open(const std::string& path);

  void prepare(const Snapshot& snapshot) override;
  void start_save(const Snapshot& snapshot) override;
  void wait_until_copied() noexcept override;
  bool is_saving() const override { return saving_ >= 0; }
  bool part_is_durable() override;
  void commit_save() override;
  bool finish() override;

 private:
  std::unique_ptr<VerifiedCheckpoint> newest_whole();
  bool has_gone_on_from(std::int64_t step) const;
  std::string path_of(std::int64_t step) const;
  std::vector<std::int64_t> steps_in_folder() const;
  void remove_leftovers() const;
  void take_up(const Catalogue& catalogue);
  void complete_save();
  void tidy_up(std::int64_t newest);
  void finish_removal();
  void handle_failure(const Error& failure, std::int64_t step);
  void report(const std::string& message) const;

  Communicator& communicator_;
  CheckpointOptions options_;
  std::unique_ptr<RunLock> lock_;  ///< rank 0's
  std::vector<LaunchRecord> launches_;
  std::set<std::int64_t> damaged_;  ///< steps whose files are known not to be whole
  std::unique_ptr<CheckpointWriter> writer_;
  std::future<void> removal_;  ///< rank 0's: of older files, which takes a disk a while
  std::int64_t saving_ = -1;   ///< the step of the save under way; -1: none
  bool is_sealed_ = false;     ///< whether only its name is missing, once rank 0 is done
  bool has_failed_ = false;    ///< the newest save came to nothing
};

}  // namespace lockstep
