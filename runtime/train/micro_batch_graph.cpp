#include "runtime/train/micro_batch_graph.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "runtime/plan/error.hpp"
#include "runtime/train/torch_error.hpp"

namespace lockstep {
namespace {

constexpr int num_warmups = 3;

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

}  // namespace

MicroBatchGraph::MicroBatchGraph(DeviceGraphMaker make_graph, FlatState& state, Passes passes)
    : make_graph_(std::move(make_graph)), state_(state), passes_(std::move(passes)) {}

std::optional<at::Tensor> MicroBatchGraph::run(const Batch& batch, double factor) {
  if (!make_graph_ || num_seen_++ < num_warmups) return std::nullopt;
  if (graph_ && (!same_form(batch.inputs, batch_.inputs) || !same_form(batch.targets, batch_.targets)))
    return std::nullopt;
  const at::NoGradGuard no_grad;
  const bool is_first = !graph_;
  if (is_first) {
    try {
      record(batch);
    } catch (const std::exception& error) {
      note_ = text("no CUDA graph, every kernel is launched by itself (", message_of(error), ")");
      make_graph_ = nullptr;
      state_.restore_buffers();
      return std::nullopt;
    }
  }
  batch_.inputs.copy_(batch.inputs, /*non_blocking=*/true);
  batch_.targets.copy_(batch.targets, /*non_blocking=*/true);
  factor_.fill_(factor);
  graph_->replay();
  for (const auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
  // Recording has counted for the first replay.
  if (!is_first)
    for (std::size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] != 0.0) state_.loose()[i].tensor.add_(1);
  return loss_.clone();  // the next replay writes there again
}

void MicroBatchGraph::record(const Batch& batch) {
  batch_ = {batch.inputs.clone(), batch.targets.clone()};
  factor_ = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(state_.device()));
  std::unique_ptr<DeviceGraph> graph = make_graph_();
  if (!graph) throw Error(ErrorKind::usage, "nothing here computes by graphs");
  graph->record([this] {
    const at::AutoGradMode with_gradients(true);
    const Loss loss = passes_(batch_, [this](const Loss& of) {
      if (of.weight)
        throw Error(ErrorKind::usage,
                    "the loss function weighs its sum by a number on the host, which a graph cannot compute");
      return factor_;
    });
    loss_ = loss.value.detach();
    gradients_.clear();
    for (const FlatGroup& group : state_.groups())
      for (const FlatEntry& entry : group.entries)
        if (entry.trainable && entry.tensor.grad().defined())
          gradients_.emplace_back(entry.tensor, std::exchange(entry.tensor.mutable_grad(), at::Tensor()));
  });
  counts_ = state_.counts();
  graph_ = std::move(graph);
}

}  // namespace lockstep
