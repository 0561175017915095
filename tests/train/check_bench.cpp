// What it costs to unscale the gradients and to know whether all of them are finite, as a part of a training step of
// the CNN with 32 samples. The check is timed together with the whole exchange of a step on one rank, of which it is
// a part, so the printed share is an upper bound.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

#include "runtime/comm/one_process_communicator.hpp"
#include "runtime/train/step_exchange.hpp"
#include "tests/train/training_case.hpp"

namespace lockstep::test {
namespace {

/// Of processor time, so that a busy machine does not count.
double median_milliseconds(int repeats, const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  };
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double start = now();
    work();
    times.push_back(now() - start);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<std::size_t>(repeats / 2)];
}

TrainingCase benchmark() {
  TrainingCase what{.name = "cnn", .model = TrainingCase::cnn(), .options = {}};
  what.model.input_shape = {1, 28, 28};
  what.model.num_outputs = 10;
  what.num_samples = 320;
  what.global_batch_size = what.micro_batch_size = 32;
  what.options.plan.num_train_epochs = "20";
  return what;
}

double step_milliseconds(const TrainingCase& what) {
  OneProcessCommunicator alone;
  TrainingRun run(what, alone);
  return median_milliseconds(100, [&] { run.trainer().take_step(); });
}

double check_milliseconds(const TrainingCase& what) {
  OneProcessCommunicator alone;
  const auto model = make_model(what.model, 11);
  FlatState state(*model, alone, 1);
  const GradientBuckets buckets(state, 0);
  StepExchange exchange(state, buckets, alone, /*most_micro_batches=*/1);
  DataShape shape;
  shape.num_samples = what.num_samples;
  const TrainingPlan plan = TrainingPlan::fresh(what.resolved().plan, shape, 1);
  MicroBatchSums sums;
  sums.share = {0, 1};
  sums.losses = {at::scalar_tensor(1.0)};
  sums.weights = {32.0};
  sums.loss_kind = LossKind::mean;
  sums.counter_counts.assign(state.loose().size(), 0.0);
  const at::NoGradGuard no_grad;
  return median_milliseconds(500, [&] {
    exchange.begin(plan.batch(), plan.next_step());
    const StepTotals totals = exchange.reduce(sums, 65536.0, {});
    for (at::Tensor& slice : exchange.slices()) slice.mul_(totals.gradient_factor);
  });
}

void run() {
  at::set_num_threads(1);
  const TrainingCase what = benchmark();
  const double step = step_milliseconds(what);
  const double check = check_milliseconds(what);
  std::printf("step %.3f ms, unscaling and checking %.3f ms: %.2f %%\n", step, check, 100.0 * check / step);
}

}  // namespace
}  // namespace lockstep::test

int main() { lockstep::test::run(); }
