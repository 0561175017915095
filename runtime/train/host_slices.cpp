#include "runtime/train/host_slices.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

std::vector<std::vector<HostSlices::Pair>>& HostSlices::pairs() {
  if (!pairs_.empty()) return pairs_;
  const auto pair_of = [this](const at::Tensor& live) {
    if (!are_copies()) return Pair{live, live};
    return Pair{live, at::empty(live.sizes(), live.options().device(at::kCPU).pinned_memory(true))};
  };
  for (std::size_t g = 0; g < state_.groups().size(); ++g) {
    const FlatGroup& group = state_.groups()[g];
    pairs_.push_back({pair_of(group.own_weights)});
    for (std::size_t m = 0; m < optimizer_.moment_names().size(); ++m)
      pairs_.back().push_back(pair_of(optimizer_.moment(g, m)));
  }
  return pairs_;
}

void HostSlices::start_fetch() {
  if (!are_copies()) return;
  const c10::Device device = state_.device();
  const at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl streams(device.type());
  c10::Event before(device.type());
  before.record(streams.getStream(device));
  const c10::StreamGuard guard(streams.getStreamFromGlobalPool(device));
  before.block(guard.current_stream());
  for (const auto& of_group : pairs())
    for (const Pair& pair : of_group) pair.on_host.copy_(pair.live, /*non_blocking=*/true);
  fetched_ = std::make_shared<c10::Event>(device.type());
  fetched_->record(guard.current_stream());
}

std::function<void()> HostSlices::wait_for_fetch() const {
  if (!fetched_) return [] {};
  return [fetched = fetched_] { fetched->synchronize(); };
}

void HostSlices::put_changes_after_fetch() const {
  if (!fetched_) return;
  const c10::Device device = state_.device();
  fetched_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void HostSlices::store() {
  if (!are_copies()) return;
  const at::NoGradGuard no_grad;
  for (const auto& of_group : pairs())
    for (const Pair& pair : of_group) pair.live.copy_(pair.on_host);
}

}  // namespace lockstep
