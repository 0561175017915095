#include "runtime/cuda/cuda_graph.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
// Recording goes on for pinned memory, too.
#define LOCKSTEP_RECORDS_PINNED_MEMORY (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11)
#endif

namespace lockstep {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void record(const std::function<void()>& work) override {
    c10::cuda::device_synchronize();                // what is under way must not be caught up in it
    c10::cuda::CUDACachingAllocator::emptyCache();  // the graph's own memory is as much again
    // The default stream cannot be recorded.
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    try {
      // What other threads do meanwhile (NCCL's, a save's) is none of its business.
      graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  /// Leaves LibTorch as if nothing had been recorded.
  void give_up() noexcept {
    try {
      graph_.capture_end();
      return;
    } catch (const std::exception&) {  // it says that the recording was broken off, which its cause has told better
    }
    // Thrown before it told the allocator and the generator that they are no longer recorded: the one would keep
    // memory that other streams have used, the other refuse to draw.
    const c10::DeviceIndex device = c10::cuda::current_device();
#if LOCKSTEP_RECORDS_PINNED_MEMORY
    try {
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    } catch (const std::exception&) {  // it had been told
    }
#endif
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
    } catch (const std::exception&) {  // it had been told
    }
    try {
      at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.graphsafe_set_state(generator.clone());
    } catch (const std::exception&) {  // there is none to mend
    }
  }

  const c10::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace lockstep
