#include "runtime/train/step_runner.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {

StepRunner::StepRunner(torch::nn::Module& module, LossFunction loss, const Dataset& data, FlatState& state,
                       ShardedOptimizer& optimizer, Communicator& communicator, Settings settings,
                       std::int64_t most_micro_batches, DeviceGraphMaker make_graph)
    : state_(state),
      optimizer_(optimizer),
      communicator_(communicator),
      settings_(std::move(settings)),
      overlaps_(state.overlaps()),
      buckets_(state, overlaps_ ? settings_.bucket_bytes : 0),
      micro_batches_(module, std::move(loss), data, state, buckets_, settings_.micro_batches, std::move(make_graph)),
      exchange_(state, buckets_, communicator, most_micro_batches) {
  if (overlaps_) blocked_ = at::zeros({}, at::TensorOptions(state.device()).dtype(at::kFloat));
}

StepAttempt StepRunner::attempt(const TrainingPlan& plan, double loss_scale, std::int64_t number,
                                const StepFlags& mine, const std::function<void()>& before_update) {
  StepAttempt attempt;
  attempt.start = std::chrono::steady_clock::now();
  attempt.step = plan.next_step();
  attempt.number = number;
  attempt.loss_scale = loss_scale;
  attempt.mine = mine;
  const StepPlan& step = attempt.step;
  attempt.share = plan.batch().share_at(step.first_sample, step.num_samples, communicator_.rank());
  attempt.drill = number == 1 && settings_.overflow_drill_steps.count(step.step) != 0;

  exchange_.begin(plan.batch(), step);
  const MicroBatchSums sums = micro_batches_.run(plan, step, attempt.share, loss_scale, attempt.drill,
                                                 [this](const Bucket& bucket) { exchange_.start(bucket); });
  if (overlaps_) {
    read_ahead(plan);
    attempt.totals = exchange_.launch(sums, loss_scale, mine);
  } else {
    attempt.totals = exchange_.reduce(sums, loss_scale, mine);
    if (!attempt.totals.finite) return attempt;
  }
  before_update();
  apply(attempt.totals, terms_of(attempt.totals), step.learning_rate);
  return attempt;
}

void StepRunner::settle(StepAttempt& attempt) {
  if (overlaps_) exchange_.settle(attempt.totals);
}

void StepRunner::take_back(const StepAttempt& failed, const std::optional<StepAttempt>& ahead) {
  if (!overlaps_) return;
  const auto take_back_counts = [this](const StepAttempt& blocked) {
    optimizer_.take_back_step();
    state_.take_back(blocked.totals.counter_counts);
  };
  take_back_counts(failed);
  if (ahead) take_back_counts(*ahead);
  exchange_.forget();
  blocked_.zero_();
}

void StepRunner::read_ahead(const TrainingPlan& plan) {
  if (const std::optional<StepPlan> next = plan.step_after_next())
    micro_batches_.read_ahead(plan, *next,
                              plan.batch().share_at(next->first_sample, next->num_samples, communicator_.rank()));
}

StepRunner::UpdateTerms StepRunner::terms_of(const StepTotals& totals) {
  UpdateTerms terms;
  terms.factor = totals.gradient_factor;
  // As torch.nn.utils.clip_grad_norm_.
  const bool clips = settings_.max_grad_norm > 0.0;
  if (!overlaps_) {
    if (clips) terms.factor *= std::min(1.0, settings_.max_grad_norm / (totals.gradient_norm + 1e-6));
    return terms;
  }
  at::Tensor finite = exchange_.numbers().all_finite();
  if (clips) {
    const at::Tensor squares = exchange_.numbers().sum_of_squares();
    finite = finite.logical_and(at::isfinite(squares));
    const at::Tensor norm = squares.sqrt().mul(totals.gradient_factor);
    terms.factor_on_device =
        at::full_like(norm, settings_.max_grad_norm).div(norm.add(1e-6)).clamp_max(1.0).mul(totals.gradient_factor);
  }
  blocked_ = blocked_.maximum(finite.logical_not().to(at::kFloat));
  terms.blocked = blocked_;
  return terms;
}

void StepRunner::apply(const StepTotals& totals, const UpdateTerms& terms, double learning_rate) {
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < state_.groups().size(); ++g) {
    FlatGroup& group = state_.groups()[g];
    const std::int64_t num_parameters = group.parameter_slice().size();
    at::Tensor& sums = exchange_.slices()[g];
    if (terms.factor_on_device.defined())
      sums.narrow(0, 0, num_parameters).mul_(terms.factor_on_device);
    else if (terms.factor != 1.0)
      sums.narrow(0, 0, num_parameters).mul_(terms.factor);
    const std::int64_t num_buffers = sums.numel() - num_parameters;
    if (num_buffers == 0) continue;
    const at::Tensor buffers = group.own_weights.narrow(0, num_parameters, num_buffers);
    const at::Tensor changes = sums.narrow(0, num_parameters, num_buffers);
    if (terms.blocked.defined())
      buffers.copy_(at::where(terms.blocked.to(at::kBool), buffers, buffers.add(changes, totals.buffer_factor)));
    else
      buffers.add_(changes, totals.buffer_factor);
  }
  optimizer_.step(exchange_.slices(), learning_rate, terms.blocked);
  state_.publish(totals.counter_counts);
}

std::string StepRunner::culprit_text(const TrainingPlan& plan, const StepAttempt& failed) {
  std::string mine;
  agree(communicator_, [&] {
    if (const auto found =
            micro_batches_.first_nonfinite(plan, failed.step, failed.share, failed.loss_scale, failed.drill))
      mine = text("micro-batch ", found->micro_batch, ", ", found->tensor);
  });
  state_.restore_buffers();
  // Shares are dealt in order of the ranks, so the first rank that found one has the first micro-batch.
  for (const std::string& of_rank : gather_texts(communicator_, mine))
    if (!of_rank.empty()) return "first in " + of_rank;
  return "only in the sum over the micro-batches";
}

}  // namespace lockstep
