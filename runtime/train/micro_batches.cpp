#include "runtime/train/micro_batches.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include "runtime/plan/coverage.hpp"
#include "runtime/train/torch_error.hpp"

namespace lockstep {
namespace {

at::Generator generator_of(c10::Device device) { return at::globalContext().defaultGenerator(device); }

void seed_generator(c10::Device device, std::uint64_t seed) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

at::Tensor generator_state(c10::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// While it lives, makes the first gradient that the backward pass brings infinite.
class OverflowDrill {
 public:
  explicit OverflowDrill(const FlatState& state) {
    for (const FlatGroup& group : state.groups())
      for (const FlatEntry& entry : group.entries)
        if (entry.trainable && entry.tensor.numel() > 0)
          hooks_.emplace_back(entry.tensor, entry.tensor.register_hook(
                                                [this](const at::Tensor& gradient) { return drilled(gradient); }));
  }
  ~OverflowDrill() {
    for (const auto& [tensor, hook] : hooks_) tensor.remove_hook(hook);
  }
  OverflowDrill(const OverflowDrill&) = delete;
  OverflowDrill& operator=(const OverflowDrill&) = delete;

 private:
  at::Tensor drilled(const at::Tensor& gradient) {
    if (std::exchange(is_done_, true)) return gradient;
    return at::full_like(gradient, std::numeric_limits<double>::infinity());
  }

  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  bool is_done_ = false;
};

bool is_all(const at::Tensor& of_elements) { return of_elements.all().item<bool>(); }

/// "a, b, c and 4 more".
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string joined;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) joined += (i ? ", " : "") + names[i];
  return names.size() > most ? text(joined, " and ", names.size() - most, " more") : joined;
}

}  // namespace

GeneratorGuard::GeneratorGuard(c10::Device device) {
  // The host draws too (augmentation).
  states_.emplace_back(at::kCPU, generator_state(at::kCPU));
  if (!device.is_cpu()) states_.emplace_back(device, generator_state(device));
}

GeneratorGuard::~GeneratorGuard() {
  try {
    for (const auto& [device, state] : states_) set_generator_state(device, state);
  } catch (const std::exception&) {  // a device that has failed: the error that ends the run has said so
  }
}

MicroBatchRunner::MicroBatchRunner(torch::nn::Module& module, LossFunction loss, const Dataset& data,
                                   FlatState& state, GradientBuckets& buckets, Settings settings,
                                   DeviceGraphMaker make_graph)
    : module_(module),
      loss_(std::move(loss)),
      data_(data),
      state_(state),
      buckets_(buckets),
      settings_(settings),
      mover_(state.device()) {
  if (make_graph)
    graph_.emplace(std::move(make_graph), state_,
                   [this](const Batch& batch, const MicroBatchGraph::FactorOf& factor_of) {
                     return differentiate(batch, factor_of);
                   });
}

SampleRange MicroBatchRunner::samples_of(const BatchPlan& plan, const StepShare& share, std::int64_t micro_batch) {
  const std::int64_t begin = share.first_sample + (micro_batch - share.micro_batches.begin) * plan.micro_batch_size;
  return {begin, std::min(begin + plan.micro_batch_size, share.first_sample + share.num_samples)};
}

MicroBatchRunner::MicroBatch MicroBatchRunner::read(const TrainingPlan& plan, const StepPlan& step,
                                                    const StepShare& share, std::int64_t index) {
  MicroBatch micro_batch;
  micro_batch.step = step.step;
  micro_batch.index = index;
  const SampleRange positions = samples_of(plan.batch(), share, index);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(positions.end - positions.begin));
  plan.sample_ids(step.epoch, positions.begin, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    micro_batch.sample_mark += sample_mark(step.epoch, positions.begin + static_cast<std::int64_t>(i), ids[i]);
    ids[i] -= settings_.first_id;
  }
  micro_batch.num_samples = static_cast<double>(ids.size());
  micro_batch.fraction = micro_batch.num_samples / static_cast<double>(plan.batch().micro_batch_size);
  seed_generator(at::kCPU, micro_batch_seed(settings_.seed, step.step, index));
  micro_batch.batch = mover_.move(data_.get(ids));
  return micro_batch;
}

void MicroBatchRunner::read_ahead(const TrainingPlan& plan, const StepPlan& step, const StepShare& share) {
  const bool is_there = ahead_ && ahead_->step == step.step;  // read during an earlier attempt at this step
  if (is_there || share.micro_batches.size() == 0) return;
  try {
    ahead_ = read(plan, step, share, share.micro_batches.begin);
    ahead_->host_generator = generator_state(at::kCPU);
  } catch (const std::exception&) {
    ahead_.reset();  // thrown again when its turn has come
  }
}

MicroBatchRunner::MicroBatch MicroBatchRunner::load(const TrainingPlan& plan, const StepPlan& step,
                                                    const StepShare& share, std::int64_t index) {
  state_.restore_buffers();
  if (!state_.device().is_cpu()) seed_generator(state_.device(), micro_batch_seed(settings_.seed, step.step, index));
  if (!ahead_ || ahead_->step != step.step || ahead_->index != index) return read(plan, step, share, index);
  MicroBatch micro_batch = *std::exchange(ahead_, std::nullopt);
  set_generator_state(at::kCPU, micro_batch.host_generator);
  return micro_batch;
}

Loss MicroBatchRunner::differentiate(const Batch& batch, const MicroBatchGraph::FactorOf& factor_of) {
  Loss loss = [&] {
    const AutocastGuard autocast(settings_.precision, state_.device().type());
    return loss_(batch);
  }();
  const bool is_double = loss.value.scalar_type() == at::kDouble;
  const at::Tensor value = is_double ? loss.value : loss.value.to(at::kFloat);
  value.backward(factor_of(loss).to(value.scalar_type()));
  return loss;
}

Loss MicroBatchRunner::differentiate(const MicroBatch& micro_batch, double loss_scale) {
  return differentiate(micro_batch.batch, [&](const Loss& loss) {
    // A short micro-batch weighs each of its samples like a full one; a weighted sum is divided once, at the end.
    const double factor = loss.weight ? loss_scale : loss_scale * micro_batch.fraction;
    return at::scalar_tensor(factor, loss.value.options().dtype(at::kDouble));
  });
}

MicroBatchSums MicroBatchRunner::run(const TrainingPlan& plan, const StepPlan& step, const StepShare& share,
                                     double loss_scale, bool overflow_drill,
                                     const GradientBuckets::WholeBucket& on_whole) {
  MicroBatchSums sums;
  sums.share = share.micro_batches;
  sums.counter_counts.assign(state_.loose().size(), 0.0);
  TreeAccumulator accumulator(step.num_micro_batches, share.micro_batches);
  try {
    for (std::int64_t index = share.micro_batches.begin; index < share.micro_batches.end; ++index) {
      const bool is_last = index + 1 == share.micro_batches.end;
      const GradientBuckets::WholeBucket on_bucket = is_last ? on_whole : GradientBuckets::WholeBucket();
      const TreeAccumulator::Deposit where = accumulator.next();
      const MicroBatch micro_batch = load(plan, step, share, index);
      sums.sample_mark += micro_batch.sample_mark;
      const bool is_drill = overflow_drill && index + 1 == step.num_micro_batches;
      std::optional<Loss> loss;
      if (graph_ && !is_drill && micro_batch.fraction == 1.0)
        if (std::optional<at::Tensor> value = graph_->run(micro_batch.batch, loss_scale)) loss.emplace(*value);
      buckets_.begin(where, on_bucket);
      if (!loss) {
        std::optional<OverflowDrill> drill;
        if (is_drill) drill.emplace(state_);
        loss = differentiate(micro_batch, loss_scale);
      }
      if (sums.loss_kind != LossKind::none && sums.loss_kind != loss->kind())
        throw Error(
            ErrorKind::do_not_requeue,
            "the loss function gave a mean for one micro-batch and a weighted sum for another (they cannot be "
            "added up): always return the same kind");
      sums.loss_kind = loss->kind();
      sums.losses.push_back(loss->value.detach());
      sums.weights.push_back(loss->weight ? *loss->weight : micro_batch.num_samples);
      buckets_.finish(micro_batch.fraction);
      const std::vector<double> counts = state_.counts();
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
  if (sums.failure) buckets_.cancel();
  return sums;
}

std::optional<MicroBatchRunner::Culprit> MicroBatchRunner::first_nonfinite(const TrainingPlan& plan,
                                                                           const StepPlan& step,
                                                                           const StepShare& share, double loss_scale,
                                                                           bool overflow_drill) {
  for (std::int64_t index = share.micro_batches.begin; index < share.micro_batches.end; ++index) {
    const MicroBatch micro_batch = load(plan, step, share, index);
    std::optional<OverflowDrill> drill;
    if (overflow_drill && index + 1 == step.num_micro_batches) drill.emplace(state_);
    const Loss loss = differentiate(micro_batch, loss_scale);
    std::vector<std::string> names;
    if (!std::isfinite(loss.value.item<double>())) names.push_back("the loss");
    for (const FlatGroup& group : state_.groups())
      for (const FlatEntry& entry : group.entries)
        if (entry.trainable && entry.tensor.grad().defined() && !is_all(at::isfinite(entry.tensor.grad())))
          names.push_back("the gradient of " + entry.name);
    for (const FlatGroup& group : state_.groups())
      for (std::size_t i = 0; i < group.entries.size(); ++i)
        if (!group.entries[i].is_parameter &&
            !is_all(at::isfinite(group.entries[i].tensor).logical_or_(group.unchanged_elements(i))))
          names.push_back("buffer " + group.entries[i].name);
    if (!names.empty()) return Culprit{index, first_of(names)};
  }
  return std::nullopt;
}

}  // namespace lockstep
