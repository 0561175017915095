#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "runtime/comm/device_api.hpp"

namespace lockstep {

/// NCCL between the devices of all ranks, on one stream, which must outlive it. No call waits for another rank: NCCL
/// connects in threads of its own, and state() tells when it is done.
class NcclChannel final : public DeviceChannel {
 public:
  NcclChannel(int device_index, cudaStream_t stream, const DeviceApi::ChannelId& id, int num_ranks, int rank);
  ~NcclChannel() override;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  ChannelState state() override;
  std::string problem() override;
  void abort() noexcept override;

  void begin_group() override;
  void end_group() override;
  void send(const std::byte* from, std::int64_t count, ElementType type, int rank) override;
  void receive(std::byte* into, std::int64_t count, ElementType type, int rank) override;
  void reduce(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) override;
  void reduce_scatter(const std::byte* from, std::byte* into, std::int64_t count, ElementType type) override;
  void broadcast(std::byte* in_place, std::int64_t count, ElementType type, int root) override;
  void all_gather(std::byte* all, std::int64_t count, ElementType type) override;

 private:
  int device_index_;
  cudaStream_t stream_;
  int rank_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace lockstep
