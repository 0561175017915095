#pragma once

namespace lockstep {

/// Throws Error when an MPI call did not succeed, with the function's name and MPI's own text.
///
/// Works only on communicators whose error handler is MPI_ERRORS_RETURN (MpiSession sets it); MPI's default
/// handler ends the program before the code is ever seen.
void check_mpi(int code, const char* function);

}  // namespace lockstep
