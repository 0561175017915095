#include "runtime/comm/mpi_error.hpp"

#include <mpi.h>

#include <string>

#include "runtime/plan/error.hpp"

namespace lockstep {

void check_mpi(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::string reason(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, reason.data(), &length) != MPI_SUCCESS) length = 0;
  reason.resize(static_cast<std::size_t>(length));
  throw Error(ErrorKind::failed, text(function, " failed (MPI error ", code, ": ", reason,
                                      "): look for a rank or a node that died, and start the run again"));
}

}  // namespace lockstep
