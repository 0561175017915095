#pragma once

#include <c10/core/Device.h>
#include <mpi.h>

#include <memory>
#include <string>

#include "runtime/comm/device_api.hpp"
#include "runtime/comm/mpi_session.hpp"

namespace lockstep::test {

/// A device that several ranks use at once, which NCCL refuses: what they send each other goes through host memory
/// and MPI, and a transfer is over when it was asked for. All else is the device's own. So one device shows what
/// holds on several. The session must outlive it.
class SharedDevice final : public DeviceApi {
 public:
  /// `where`: what LibTorch calls its memory. **Collective**, as is destruction.
  SharedDevice(const MpiSession& session, std::unique_ptr<DeviceApi> device, c10::Device where);
  ~SharedDevice() override;
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

  int index() const override { return device_->index(); }
  std::string name() const override { return device_->name() + ", shared by the ranks of a test"; }
  std::string identity() const override;

  std::byte* allocate(std::size_t num_bytes) override { return device_->allocate(num_bytes); }
  void release(std::byte* memory) noexcept override { device_->release(memory); }

  std::unique_ptr<DeviceEvent> make_event() override { return device_->make_event(); }
  void record(DeviceEvent& event, DeviceQueue queue) override { device_->record(event, queue); }
  void wait(DeviceQueue queue, DeviceEvent& event) override { device_->wait(queue, event); }
  bool is_done(DeviceEvent& event) override { return device_->is_done(event); }

  void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                     std::int64_t num_elements, std::byte* out) override {
    device_->evaluate_tree(program, type, inputs, num_elements, out);
  }
  std::unique_ptr<DeviceGraph> make_graph() override { return device_->make_graph(); }

  ChannelId make_channel_id() override { return {}; }
  std::unique_ptr<DeviceChannel> connect(const ChannelId& id, int num_ranks, int rank) override;

  /// Waits until the transfer queue is empty.
  void finish_transfers();

  MPI_Comm comm() const { return comm_; }
  c10::Device where() const { return where_; }

 private:
  int rank_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<DeviceApi> device_;
  c10::Device where_;
  std::unique_ptr<DeviceEvent> transferred_;
};

}  // namespace lockstep::test
