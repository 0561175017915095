#pragma once

#include <mpi.h>

namespace lockstep {

/// MPI for the lifetime of a program, and the ranks of one run.
///
/// Starts MPI unless the program that embeds us already did, and ends only what it started. Works on a duplicate of
/// `parent`, so that no message of ours meets one of the host program. Errors of MPI come back as codes
/// (MPI_ERRORS_RETURN) and become Error. Prints nothing.
///
/// While an exception unwinds the destructor does *not* finalize: the other ranks may be somewhere else, and
/// MPI_Finalize would wait for them for ever. The program then ends without it, and the launcher ends the others;
/// abort() does so at once.
///
/// Must outlive every communicator, file and window made from it. Construction and destruction are **collective**.
class MpiSession {
 public:
  /// Asks for MPI_THREAD_MULTIPLE, so that a checkpoint may be written by a thread of its own; throws Error where
  /// not even calls from the main thread of a threaded program are allowed.
  explicit MpiSession(MPI_Comm parent = MPI_COMM_WORLD);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  MPI_Comm comm() const { return comm_; }  ///< the duplicate; whoever opens files duplicates it once more
  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  int local_rank() const { return local_rank_; }            ///< rank among those of this node
  int num_local_ranks() const { return num_local_ranks_; }  ///< ranks of this node
  bool is_one_node() const { return num_local_ranks_ == num_ranks_; }

  /// True when any thread may call MPI; otherwise only the main thread may.
  bool any_thread_may_communicate() const { return thread_level_ == MPI_THREAD_MULTIPLE; }

  /// Ends all ranks at once with this exit code: for a failure of one rank that the others do not know of.
  [[noreturn]] void abort(int exit_code) const;

 private:
  bool owns_mpi_ = false;
  int uncaught_at_start_;
  int thread_level_ = MPI_THREAD_SINGLE;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int num_ranks_ = 1;
  int local_rank_ = 0;
  int num_local_ranks_ = 1;
};

}  // namespace lockstep
