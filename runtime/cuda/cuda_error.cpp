#include "runtime/cuda/cuda_error.hpp"

#include "runtime/plan/error.hpp"

namespace lockstep {

void check_cuda(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // it is told here, not by the next call
  const char* const next_act =
      code == cudaErrorMemoryAllocation
          ? "): use a smaller micro-batch or model, or a device with more memory"
          : "): look into the node's log for the device's own message, and start the run again";
  throw Error(ErrorKind::failed, text(function, " failed (CUDA error ", static_cast<int>(code), ": ",
                                      cudaGetErrorString(code), next_act));
}

void check_nccl(ncclResult_t code, const char* function, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* const detail = ncclGetLastError(comm);
  throw Error(ErrorKind::failed,
              text(function, " failed (NCCL error ", static_cast<int>(code), ": ", ncclGetErrorString(code), "; ",
                   detail != nullptr ? detail : "", "): set NCCL_DEBUG=INFO to see more, and start the run again"));
}

}  // namespace lockstep
