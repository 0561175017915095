#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace lockstep {

/// Throws Error when a call of CUDA did not succeed, with the function's name and CUDA's own text. A kernel's failure
/// is often told by the call after it.
void check_cuda(cudaError_t code, const char* function);

/// The same for NCCL, whose calls may also say that they are not done yet. `comm` may be null.
void check_nccl(ncclResult_t code, const char* function, ncclComm_t comm);

}  // namespace lockstep
