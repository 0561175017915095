#include "tests/gpu/shared_device.hpp"

#include <ATen/ops/empty.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/plan/error.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep::test {
namespace {

/// Messages between the ranks' hosts, for memory of their devices.
class HostChannel final : public DeviceChannel {
 public:
  HostChannel(SharedDevice& device, int num_ranks, int rank) : device_(device), num_ranks_(num_ranks), rank_(rank) {}

  ChannelState state() override { return ChannelState::ready; }
  std::string problem() override { return {}; }
  void abort() noexcept override {}

  void begin_group() override {
    sends_.clear();
    receives_.clear();
    ends_.clear();
  }

  void end_group() override {
    device_.finish_transfers();
    std::vector<MPI_Request> requests;
    std::vector<at::Tensor> sent;
    for (const Send& send : sends_) {
      sent.push_back(view(const_cast<std::byte*>(send.from), send.count, send.type).cpu());
      requests.emplace_back();
      check_mpi(MPI_Isend(sent.back().const_data_ptr(), static_cast<int>(sent.back().nbytes()), MPI_BYTE, send.rank,
                          0, device_.comm(), &requests.back()),
                "MPI_Isend");
    }
    for (Receive& receive : receives_) {
      requests.emplace_back();
      check_mpi(MPI_Irecv(receive.into.data_ptr(), static_cast<int>(receive.into.nbytes()), MPI_BYTE, receive.rank, 0,
                          device_.comm(), &requests.back()),
                "MPI_Irecv");
    }
    check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    for (const auto& end : ends_) end();
  }

  void send(const std::byte* from, std::int64_t count, ElementType type, int rank) override {
    sends_.push_back({from, count, type, rank});
  }
  void receive(std::byte* into, std::int64_t count, ElementType type, int rank) override {
    const at::Tensor arrived = expect(count, type, rank);
    ends_.emplace_back([=, this] { view(into, count, type).copy_(arrived); });
  }
  void reduce(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) override {
    if (rank_ != root) return send(from, count, type, root);
    std::vector<at::Tensor> others;
    for (int other = num_ranks_ - 1; other >= 0; --other)
      if (other != root) others.push_back(expect(count, type, other));
    ends_.emplace_back([=, this] {
      at::Tensor sum = view(const_cast<std::byte*>(from), count, type).clone();
      for (const at::Tensor& other : others) sum += other.to(sum.device());
      view(into, count, type).copy_(sum);
    });
  }
  void reduce_scatter(const std::byte* from, std::byte* into, std::int64_t count, ElementType type) override {
    for (int root = 0; root < num_ranks_; ++root)
      reduce(from + root * bytes(count, type), root == rank_ ? into : nullptr, count, type, root);
  }
  void broadcast(std::byte* in_place, std::int64_t count, ElementType type, int root) override {
    if (rank_ != root) return receive(in_place, count, type, root);
    for (int other = 0; other < num_ranks_; ++other)
      if (other != root) send(in_place, count, type, other);
  }
  void all_gather(std::byte* all, std::int64_t count, ElementType type) override {
    for (int root = 0; root < num_ranks_; ++root) broadcast(all + root * bytes(count, type), count, type, root);
  }

 private:
  struct Send {
    const std::byte* from;
    std::int64_t count;
    ElementType type;
    int rank;
  };
  struct Receive {
    at::Tensor into;
    int rank;
  };

  static std::int64_t bytes(std::int64_t count, ElementType type) {
    return count * static_cast<std::int64_t>(size_of(type));
  }
  at::Tensor view(std::byte* memory, std::int64_t count, ElementType type) const {
    return view_of(memory, {count}, scalar_type_of(type), device_.where());
  }
  at::Tensor expect(std::int64_t count, ElementType type, int rank) {
    receives_.push_back({at::empty({count}, scalar_type_of(type)), rank});
    return receives_.back().into;
  }

  SharedDevice& device_;
  int num_ranks_;
  int rank_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<std::function<void()>> ends_;
};

}  // namespace

SharedDevice::SharedDevice(const MpiSession& session, std::unique_ptr<DeviceApi> device, c10::Device where)
    : rank_(session.rank()), device_(std::move(device)), where_(where), transferred_(device_->make_event()) {
  check_mpi(MPI_Comm_dup(session.comm(), &comm_), "MPI_Comm_dup");
}

SharedDevice::~SharedDevice() { MPI_Comm_free(&comm_); }

std::string SharedDevice::identity() const { return text(device_->identity(), " of rank ", rank_); }

std::unique_ptr<DeviceChannel> SharedDevice::connect(const ChannelId& /*id*/, int num_ranks, int rank) {
  return std::make_unique<HostChannel>(*this, num_ranks, rank);
}

void SharedDevice::finish_transfers() {
  device_->record(*transferred_, DeviceQueue::transfer);
  while (!device_->is_done(*transferred_)) std::this_thread::yield();
}

}  // namespace lockstep::test
