#include "runtime/cuda/cuda_error.hpp"

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

const char* next_act(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return "use a smaller micro-batch or model, or a device with more memory";
    case cudaErrorAssert:
      return "a kernel refused its input, as a label for which the model has no class: look at the data";
    default:
      return "look into the node's log for the device's own message, and start the run again";
  }
}

}  // namespace

void check_cuda(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // it is told here, not by the next call
  // The same data would be refused again.
  const ErrorKind kind = code == cudaErrorAssert ? ErrorKind::do_not_requeue : ErrorKind::failed;
  throw Error(kind, text(function, " failed (CUDA error ", static_cast<int>(code), ": ", cudaGetErrorString(code),
                         "): ", next_act(code)));
}

void check_nccl(ncclResult_t code, const char* function, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* const detail = ncclGetLastError(comm);
  throw Error(ErrorKind::failed,
              text(function, " failed (NCCL error ", static_cast<int>(code), ": ", ncclGetErrorString(code), "; ",
                   detail != nullptr ? detail : "", "): set NCCL_DEBUG=INFO to see more, and start the run again"));
}

}  // namespace lockstep
