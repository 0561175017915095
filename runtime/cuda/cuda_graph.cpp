#include "runtime/cuda/cuda_graph.hpp"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace lockstep {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void record(const std::function<void()>& work) override {
    c10::cuda::device_synchronize();  // what is under way must not be caught up in it
    // The default stream cannot be recorded.
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    graph_.capture_begin();
    try {
      work();
    } catch (...) {
      give_up();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  /// Leaves the device as if nothing had been recorded.
  void give_up() noexcept {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {  // it says that the recording was broken off, which its cause has told better
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace lockstep
