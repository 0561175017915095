#include "runtime/cuda/cuda_device.hpp"

#include <nccl.h>

#include <cstdio>
#include <cstring>

#include "runtime/cuda/caller_stream.hpp"
#include "runtime/cuda/cuda_error.hpp"
#include "runtime/cuda/cuda_graph.hpp"
#include "runtime/cuda/nccl_channel.hpp"
#include "runtime/cuda/tree_kernel.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaEvent_t native(const DeviceEvent& event) { return static_cast<const CudaEvent&>(event).get(); }

std::string spelled(const cudaUUID_t& uuid) {
  std::string digits;
  for (const char byte : uuid.bytes) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    digits += pair;
  }
  return "GPU-" + digits;
}

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion", nullptr);
  return text(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

CudaDevice::CudaDevice(int index) : index_(index) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  name_ = text("CUDA with NCCL ", nccl_version(), " on ", properties.name);
  identity_ = text(properties.name, " ", spelled(properties.uuid));
  make_current();
  // Transfers go first where a device must choose: others wait for them. Not ordered with the legacy stream.
  int least_priority = 0;
  int greatest_priority = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least_priority, &greatest_priority),
             "cudaDeviceGetStreamPriorityRange");
  check_cuda(cudaStreamCreateWithPriority(&transfer_stream_, cudaStreamNonBlocking, greatest_priority),
             "cudaStreamCreateWithPriority");
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(index_);
  cudaStreamDestroy(transfer_stream_);
}

std::byte* CudaDevice::allocate(std::size_t num_bytes) {
  make_current();
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, num_bytes), text("cudaMalloc of ", num_bytes, " bytes").c_str());
  auto* const bytes = static_cast<std::byte*>(memory);
  try {
    check_cuda(cudaMemset(bytes, 0, num_bytes), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // all streams see zeros
  } catch (const Error&) {
    release(bytes);
    throw;
  }
  return bytes;
}

void CudaDevice::release(std::byte* memory) noexcept {
  cudaSetDevice(index_);
  cudaFree(memory);
}

std::unique_ptr<DeviceEvent> CudaDevice::make_event() {
  make_current();
  return std::make_unique<CudaEvent>();
}

void CudaDevice::record(DeviceEvent& event, DeviceQueue queue) {
  make_current();
  check_cuda(cudaEventRecord(native(event), stream_of(queue)), "cudaEventRecord");
}

void CudaDevice::wait(DeviceQueue queue, DeviceEvent& event) {
  make_current();
  check_cuda(cudaStreamWaitEvent(stream_of(queue), native(event), 0), "cudaStreamWaitEvent");
}

bool CudaDevice::is_done(DeviceEvent& event) {
  make_current();
  const cudaError_t code = cudaEventQuery(native(event));
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // no error, but kept as one for whoever asks next
    return false;
  }
  check_cuda(code, "cudaEventQuery");
  return true;
}

void CudaDevice::evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                               std::int64_t num_elements, std::byte* out) {
  make_current();
  launch_tree(program, type, inputs, num_elements, out, transfer_stream_);
}

std::unique_ptr<DeviceGraph> CudaDevice::make_graph() {
  make_current();
  return make_cuda_graph();
}

DeviceApi::ChannelId CudaDevice::make_channel_id() {
  make_current();
  ncclUniqueId unique_id;
  check_nccl(ncclGetUniqueId(&unique_id), "ncclGetUniqueId", nullptr);
  ChannelId id;
  static_assert(sizeof id == sizeof unique_id);
  std::memcpy(id.data(), &unique_id, sizeof unique_id);
  return id;
}

std::unique_ptr<DeviceChannel> CudaDevice::connect(const ChannelId& id, int num_ranks, int rank) {
  return std::make_unique<NcclChannel>(index_, transfer_stream_, id, num_ranks, rank);
}

void CudaDevice::make_current() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

cudaStream_t CudaDevice::stream_of(DeviceQueue queue) const {
  return queue == DeviceQueue::transfer ? transfer_stream_ : caller_stream(index_);
}

}  // namespace lockstep
