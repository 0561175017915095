#include "runtime/train/micro_batches.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include "runtime/plan/coverage.hpp"
#include "runtime/plan/node_sums.hpp"
#include "runtime/train/torch_error.hpp"

namespace lockstep {
namespace {

void seed_generator(std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

bool is_all_finite(const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); }

/// "a, b, c and 4 more".
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string joined;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) joined += (i ? ", " : "") + names[i];
  return names.size() > most ? text(joined, " and ", names.size() - most, " more") : joined;
}

}  // namespace

GeneratorGuard::GeneratorGuard() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  state_ = generator.get_state();
}

GeneratorGuard::~GeneratorGuard() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state_);
}

MicroBatchRunner::MicroBatchRunner(torch::nn::Module& module, LossFunction loss, const Dataset& data,
                                   FlatState& state, Settings settings)
    : module_(module), loss_(std::move(loss)), data_(data), state_(state), settings_(settings) {}

SampleRange MicroBatchRunner::samples_of(const BatchPlan& plan, const StepShare& share, std::int64_t micro_batch) {
  const std::int64_t begin = share.first_sample + (micro_batch - share.micro_batches.begin) * plan.micro_batch_size;
  return {begin, std::min(begin + plan.micro_batch_size, share.first_sample + share.num_samples)};
}

Loss MicroBatchRunner::differentiate(const TrainingPlan& plan, const StepPlan& step, const StepShare& share,
                                     std::int64_t micro_batch, double loss_scale, bool overflow_drill,
                                     std::uint64_t& sample_mark) {
  const std::int64_t size = plan.batch().micro_batch_size;
  const SampleRange positions = samples_of(plan.batch(), share, micro_batch);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(positions.end - positions.begin));
  plan.sample_ids(step.epoch, positions.begin, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    sample_mark += lockstep::sample_mark(step.epoch, positions.begin + static_cast<std::int64_t>(i), ids[i]);
    ids[i] -= settings_.first_id;
  }

  state_.restore_buffers();
  seed_generator(micro_batch_seed(settings_.seed, step.step, micro_batch));
  const Batch batch = data_.get(ids);
  Loss loss = [&] {
    const AutocastGuard autocast(settings_.precision, at::kCPU);
    return loss_(batch);
  }();
  // A short micro-batch weighs each of its samples like a full one; a weighted sum is divided once, at the end.
  const double weight = loss.weight ? 1.0 : static_cast<double>(ids.size()) / static_cast<double>(size);
  const bool is_double = loss.value.scalar_type() == at::kDouble;
  const at::Tensor value = is_double ? loss.value : loss.value.to(at::kFloat);
  value.backward(at::scalar_tensor(loss_scale * weight, value.options()));
  if (overflow_drill && micro_batch + 1 == step.num_micro_batches) {
    const at::NoGradGuard no_grad;
    for (FlatGroup& group : state_.groups())
      for (FlatEntry& entry : group.entries)
        if (entry.trainable && entry.tensor.grad().defined() && entry.tensor.numel() > 0) {
          entry.tensor.mutable_grad().view(-1)[0] = std::numeric_limits<double>::infinity();
          return loss;
        }
  }
  return loss;
}

MicroBatchSums MicroBatchRunner::run(const TrainingPlan& plan, const StepPlan& step, const StepShare& share,
                                     double loss_scale, bool overflow_drill) {
  MicroBatchSums sums;
  sums.counter_counts.assign(state_.loose().size(), 0.0);
  NodeSums losses(step.num_micro_batches, share.micro_batches);
  NodeSums weights(step.num_micro_batches, share.micro_batches);
  TreeAccumulator accumulator(step.num_micro_batches, share.micro_batches);
  const auto micro_batch_size = static_cast<double>(plan.batch().micro_batch_size);
  try {
    for (std::int64_t index = share.micro_batches.begin; index < share.micro_batches.end; ++index) {
      const Loss loss = differentiate(plan, step, share, index, loss_scale, overflow_drill, sums.sample_mark);
      const SampleRange positions = samples_of(plan.batch(), share, index);
      const auto num_samples = static_cast<double>(positions.end - positions.begin);
      const auto kind = loss.weight ? MicroBatchSums::LossKind::weighted : MicroBatchSums::LossKind::mean;
      if (sums.loss_kind != MicroBatchSums::LossKind::none && sums.loss_kind != kind)
        throw Error(
            ErrorKind::do_not_requeue,
            "the loss function gave a mean for one micro-batch and a weighted sum for another (they cannot be "
            "added up): always return the same kind");
      sums.loss_kind = kind;
      const double value = loss.value.item<double>();
      losses.add(loss.weight ? value : value * num_samples);
      weights.add(loss.weight ? *loss.weight : num_samples);
      const std::vector<double> counts = state_.deposit(accumulator.next(), num_samples / micro_batch_size);
      for (std::size_t i = 0; i < counts.size(); ++i)
        sums.counter_counts[i] = std::max(sums.counter_counts[i], counts[i]);
    }
  } catch (const Error& error) {
    sums.failure = error;
  } catch (const std::exception& error) {
    sums.failure.emplace(ErrorKind::do_not_requeue, text("step ", step.step + 1, ": ", message_of(error)));
  } catch (...) {
    sums.failure.emplace(
        ErrorKind::do_not_requeue,
        text("step ", step.step + 1, ": the loss function threw something that is not a std::exception"));
  }
  sums.loss_nodes = losses.values();
  sums.weight_nodes = weights.values();
  return sums;
}

std::optional<MicroBatchRunner::Culprit> MicroBatchRunner::first_nonfinite(const TrainingPlan& plan,
                                                                           const StepPlan& step,
                                                                           const StepShare& share, double loss_scale,
                                                                           bool overflow_drill) {
  for (std::int64_t index = share.micro_batches.begin; index < share.micro_batches.end; ++index) {
    std::uint64_t unused = 0;
    const Loss loss = differentiate(plan, step, share, index, loss_scale, overflow_drill, unused);
    std::vector<std::string> names;
    if (!std::isfinite(loss.value.item<double>())) names.push_back("the loss");
    for (const FlatGroup& group : state_.groups())
      for (const FlatEntry& entry : group.entries)
        if (entry.trainable && entry.tensor.grad().defined() && !is_all_finite(entry.tensor.grad()))
          names.push_back("the gradient of " + entry.name);
    for (const FlatGroup& group : state_.groups())
      for (std::size_t i = 0; i < group.entries.size(); ++i)
        if (!group.entries[i].is_parameter && group.is_changed(i) && !is_all_finite(group.entries[i].tensor))
          names.push_back("buffer " + group.entries[i].name);
    if (!names.empty()) return Culprit{index, first_of(names)};
  }
  return std::nullopt;
}

}  // namespace lockstep
