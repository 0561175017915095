#include "runtime/comm/mpi_session.hpp"

#include <cstdlib>
#include <exception>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {

MpiSession::MpiSession(MPI_Comm parent) : uncaught_at_start_(std::uncaught_exceptions()) {
  int is_initialized = 0;
  check_mpi(MPI_Initialized(&is_initialized), "MPI_Initialized");
  if (is_initialized != 0) {
    check_mpi(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_), "MPI_Init_thread");
    owns_mpi_ = true;
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  if (thread_level_ < MPI_THREAD_FUNNELED) {
    throw Error(ErrorKind::usage, text("MPI runs at thread level ", thread_level_, " (MPI_THREAD_SINGLE), but ",
                                       "tensor kernels use threads: start MPI with MPI_Init_thread and at least "
                                       "MPI_THREAD_FUNNELED (",
                                       MPI_THREAD_FUNNELED, ")"));
  }
  check_mpi(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &num_ranks_), "MPI_Comm_size");

  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(node, &local_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(node, &num_local_ranks_), "MPI_Comm_size");
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > uncaught_at_start_) return;
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) return;
  MPI_Comm_free(&comm_);
  if (owns_mpi_) MPI_Finalize();
}

void MpiSession::abort(int exit_code) const {
  MPI_Abort(comm_, exit_code);
  std::abort();  // not reached: MPI_Abort does not return, but does not say so
}

}  // namespace lockstep
