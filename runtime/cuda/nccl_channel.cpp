#include "runtime/cuda/nccl_channel.hpp"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "runtime/cuda/cuda_error.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::chrono::seconds most_time_to_close(10);

ncclDataType_t nccl_type(ElementType type) {
  if (type == ElementType::float32) return ncclFloat32;
  if (type == ElementType::float64) return ncclFloat64;
  throw std::logic_error("flat states are float32 or float64 only");
}

// NCCL counts in size_t: transfers of more than 2^31 elements need not be cut.
std::size_t nccl_count(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

NcclChannel::NcclChannel(int device_index, cudaStream_t stream, const DeviceApi::ChannelId& id, int num_ranks,
                         int rank)
    : device_index_(device_index), stream_(stream), rank_(rank) {
  static_assert(sizeof(ncclUniqueId) == sizeof(DeviceApi::ChannelId));
  ncclUniqueId unique_id;
  std::memcpy(&unique_id, id.data(), sizeof unique_id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check_cuda(cudaSetDevice(device_index_), "cudaSetDevice");
  check_nccl(ncclCommInitRankConfig(&comm_, num_ranks, unique_id, rank, &config), "ncclCommInitRankConfig", nullptr);
}

NcclChannel::~NcclChannel() {
  if (comm_ == nullptr) return;
  cudaSetDevice(device_index_);
  const auto start = std::chrono::steady_clock::now();
  ncclResult_t result = ncclCommFinalize(comm_);
  while (result == ncclInProgress && std::chrono::steady_clock::now() - start < most_time_to_close) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) break;
  }
  if (result == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    abort();
  }
}

ChannelState NcclChannel::state() {
  ncclResult_t result = ncclSuccess;
  if (comm_ == nullptr || ncclCommGetAsyncError(comm_, &result) != ncclSuccess) return ChannelState::failed;
  if (result == ncclSuccess) return ChannelState::ready;
  return result == ncclInProgress ? ChannelState::working : ChannelState::failed;
}

std::string NcclChannel::problem() {
  if (comm_ == nullptr) return "NCCL was aborted";
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  const char* const detail = ncclGetLastError(comm_);
  return text("NCCL: ", ncclGetErrorString(asked != ncclSuccess ? asked : result), ": ",
              detail != nullptr ? detail : "");
}

void NcclChannel::abort() noexcept {
  if (comm_ == nullptr) return;
  cudaSetDevice(device_index_);
  ncclCommAbort(comm_);
  comm_ = nullptr;
}

void NcclChannel::begin_group() {
  check_cuda(cudaSetDevice(device_index_), "cudaSetDevice");
  check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
}

void NcclChannel::end_group() { check_nccl(ncclGroupEnd(), "ncclGroupEnd", comm_); }

void NcclChannel::send(const std::byte* from, std::int64_t count, ElementType type, int rank) {
  check_nccl(ncclSend(from, nccl_count(count), nccl_type(type), rank, comm_, stream_), "ncclSend", comm_);
}

void NcclChannel::receive(std::byte* into, std::int64_t count, ElementType type, int rank) {
  check_nccl(ncclRecv(into, nccl_count(count), nccl_type(type), rank, comm_, stream_), "ncclRecv", comm_);
}

void NcclChannel::reduce(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) {
  check_nccl(ncclReduce(from, into, nccl_count(count), nccl_type(type), ncclSum, root, comm_, stream_), "ncclReduce",
             comm_);
}

void NcclChannel::reduce_scatter(const std::byte* from, std::byte* into, std::int64_t count, ElementType type) {
  check_nccl(ncclReduceScatter(from, into, nccl_count(count), nccl_type(type), ncclSum, comm_, stream_),
             "ncclReduceScatter", comm_);
}

void NcclChannel::broadcast(std::byte* in_place, std::int64_t count, ElementType type, int root) {
  check_nccl(ncclBroadcast(in_place, in_place, nccl_count(count), nccl_type(type), root, comm_, stream_),
             "ncclBroadcast", comm_);
}

void NcclChannel::all_gather(std::byte* all, std::int64_t count, ElementType type) {
  const std::byte* const mine = all + rank_ * count * static_cast<std::int64_t>(size_of(type));
  check_nccl(ncclAllGather(mine, all, nccl_count(count), nccl_type(type), comm_, stream_), "ncclAllGather", comm_);
}

}  // namespace lockstep
