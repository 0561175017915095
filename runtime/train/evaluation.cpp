#include "runtime/train/evaluation.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/plan/node_sums.hpp"
#include "runtime/train/device.hpp"
#include "runtime/train/micro_batches.hpp"
#include "runtime/train/torch_error.hpp"

namespace lockstep {
namespace {

/// Puts the model into evaluation mode, and every part of it back to the mode it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), training_(module.is_training()) {
    // The module itself may live on the stack; its parts are shared.
    for (const auto& part : module.modules(/*include_self=*/false)) parts_.emplace_back(part, part->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    module_.train(training_);
    for (const auto& [part, training] : parts_) part->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> parts_;
};

}  // namespace

std::map<std::string, double> evaluate_model(torch::nn::Module& module, const Dataset& data,
                                             const MetricFunction& metrics, const EvaluationSettings& settings,
                                             Communicator& communicator,
                                             const std::function<bool()>& stop_requested) {
  if (data.num_samples() == 0)
    throw Error(ErrorKind::usage,
                "the evaluation data holds no sample (a mean over none is not a number): leave the "
                "evaluation out, or give it data");
  if (data.sharding() != DataSharding::shared)
    throw Error(ErrorKind::usage,
                "the evaluation data shards itself (every rank must see all of it, so that each sample counts once): "
                "open the same files on all ranks");
  const at::NoGradGuard no_grad;
  const c10::Device device = device_of(communicator);
  const BatchMover mover(device);
  const GeneratorGuard generator(device);
  const EvaluationMode mode(module);
  const std::int64_t size = settings.batch_size;
  const std::int64_t num_batches = (data.num_samples() + size - 1) / size;
  const int num_ranks = communicator.num_ranks();
  const LeafRange share = share_of(num_batches, num_ranks, communicator.rank());
  std::map<std::string, std::pair<NodeSums, NodeSums>> sums;
  bool stopped = false;
  const auto add_up = [&] {
    for (std::int64_t index = share.begin; index < share.end && !stopped; ++index) {
      std::vector<std::int64_t> ids;
      for (std::int64_t id = index * size; id < std::min((index + 1) * size, data.num_samples()); ++id)
        ids.push_back(id);
      const Batch batch = mover.move(data.get(ids));
      const AutocastGuard autocast(settings.precision, device.type());
      for (const auto& [name, value] : metrics(batch)) {
        auto& [total, weight] =
            sums.try_emplace(name, NodeSums(num_batches, share), NodeSums(num_batches, share)).first->second;
        total.add(value.sum);
        weight.add(value.weight);
      }
      stopped = stop_requested && stop_requested();
    }
  };
  agree(communicator, [&] {
    try {
      add_up();
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::do_not_requeue, text("evaluation: ", message_of(error)));
    }
  });

  // A rank without a batch does not know the metrics' names; the first rank always has one.
  std::string names;
  for (const auto& [name, unused] : sums) names += name + '\n';
  names = broadcast_text(communicator, names);
  std::vector<LeafRange> shares;
  for (int rank = 0; rank < num_ranks; ++rank) shares.push_back(share_of(num_batches, num_ranks, rank));
  const TreeProgram program = make_tree_program(num_batches, shares);
  std::vector<std::size_t> counts;
  for (const int nodes : program.nodes_of_rank) counts.push_back(static_cast<std::size_t>(nodes) * sizeof(double));
  const auto total_of = [&](const std::vector<double>& mine) {
    std::vector<double> nodes(static_cast<std::size_t>(program.num_inputs));
    communicator.all_gather(std::as_bytes(std::span(mine)), counts, std::as_writable_bytes(std::span(nodes)));
    return program.evaluate(nodes);
  };
  std::map<std::string, double> results;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = names.find('\n', begin);
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    const auto [total, weight] =
        sums.try_emplace(name, NodeSums(num_batches, share), NodeSums(num_batches, share)).first->second;
    const double sum = total_of(total.values());
    results[name] = sum / total_of(weight.values());
  }
  for (const std::string& of_rank : gather_texts(communicator, stopped ? "stopped" : ""))
    if (!of_rank.empty()) return {};
  return results;
}

}  // namespace lockstep
