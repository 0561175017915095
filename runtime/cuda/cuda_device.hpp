#pragma once

#include <cuda_runtime_api.h>

#include "runtime/comm/device_api.hpp"

namespace lockstep {

/// One CUDA device, ordered with LibTorch's work on it. Makes it the current device of every thread that calls.
class CudaDevice final : public DeviceApi {
 public:
  /// `index`: among the devices that this process sees. Throws Error where it cannot be used.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const override { return index_; }
  std::string name() const override { return name_; }
  std::string identity() const override { return identity_; }

  std::byte* allocate(std::size_t num_bytes) override;
  void release(std::byte* memory) noexcept override;

  std::unique_ptr<DeviceEvent> make_event() override;
  void record(DeviceEvent& event, DeviceQueue queue) override;
  void wait(DeviceQueue queue, DeviceEvent& event) override;
  bool is_done(DeviceEvent& event) override;

  void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                     std::int64_t num_elements, std::byte* out) override;

  std::unique_ptr<DeviceGraph> make_graph() override;

  ChannelId make_channel_id() override;
  std::unique_ptr<DeviceChannel> connect(const ChannelId& id, int num_ranks, int rank) override;

 private:
  void make_current() const;
  cudaStream_t stream_of(DeviceQueue queue) const;

  int index_;
  std::string name_;
  std::string identity_;
  cudaStream_t transfer_stream_ = nullptr;
};

}  // namespace lockstep
