#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <set>

#include "runtime/train/trainer.hpp"
#include "runtime/train/weights_digest.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {
namespace {

/// Every rank has samples of its own, more on later ranks; it remembers which were asked for.
class OwnSamples final : public Dataset {
 public:
  explicit OwnSamples(int rank) : counts_(static_cast<std::size_t>(10 + 3 * rank)) {}

  std::int64_t num_samples() const override { return static_cast<std::int64_t>(counts_.size()); }
  DataSharding sharding() const override { return DataSharding::by_rank; }

  Batch get(std::span<const std::int64_t> ids) const override {
    at::Tensor inputs = at::empty({static_cast<std::int64_t>(ids.size()), 2});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ++counts_.at(static_cast<std::size_t>(ids[i]));
      inputs[static_cast<std::int64_t>(i)].fill_(0.1 * static_cast<double>(ids[i]));
    }
    return {inputs, inputs.sum(1, true)};
  }

  const std::vector<int>& counts() const { return counts_; }

 private:
  mutable std::vector<int> counts_;
};

struct Fit {
  torch::nn::Linear model{2, 1};

  LossFunction loss() {
    return [this](const Batch& batch) -> Loss { return at::mse_loss(model(batch.inputs), batch.targets); };
  }
};

TEST(ShardedData, IsNotDividedASecondTimeAndEverySampleCountsOnce) {
  const auto communicator = make();
  const OwnSamples data(communicator->rank());
  Fit fit;
  TrainerOptions options;
  options.plan.micro_batch_size = 4;
  options.plan.gradient_accumulation_steps = 1;
  options.plan.num_train_epochs = "2";
  options.optimizer.kind = OptimizerKind::sgd;
  options.plan.schedule.learning_rate = 0.01;
  Trainer trainer(*fit.model, fit.loss(), data, options, *communicator);
  const std::int64_t longest = 10 + 3 * (communicator->num_ranks() - 1);
  EXPECT_EQ(trainer.plan().total_steps(), 2 * ((longest + 3) / 4));
  trainer.run({}, nullptr);
  EXPECT_TRUE(std::all_of(data.counts().begin(), data.counts().end(), [](int count) { return count == 2; }));
  const auto digests = gather_texts(*communicator, weights_digest(*fit.model));
  EXPECT_EQ(std::count(digests.begin(), digests.end(), digests.front()), communicator->num_ranks());
}

TEST(ShardedData, IsRefusedForAnEvaluation) {
  const auto communicator = make();
  const OwnSamples data(communicator->rank());
  Fit fit;
  TrainerOptions options;
  options.plan.micro_batch_size = 4;
  options.plan.max_steps = 1;
  Trainer trainer(*fit.model, fit.loss(), data, options, *communicator);
  EXPECT_THROW(trainer.evaluate(data, metric_of(fit.loss())), Error);
}

TEST(Cases, C034RandomNumbersKnowTheMicroBatchAndNotTheRank) {
  // No two streams of a run are equal, and none depends on how many ranks draw from it.
  std::set<std::uint64_t> seeds;
  for (std::int64_t step = 0; step < 200; ++step)
    for (std::int64_t micro_batch = 0; micro_batch < 50; ++micro_batch)
      seeds.insert(micro_batch_seed(1, step, micro_batch));
  EXPECT_EQ(seeds.size(), 200U * 50U);

  // What the program itself draws goes on as if no step had been taken.
  const auto communicator = make();
  const OwnSamples data(communicator->rank());
  Fit fit;
  TrainerOptions options;
  options.plan.micro_batch_size = 4;
  options.plan.max_steps = 2;
  Trainer trainer(*fit.model, fit.loss(), data, options, *communicator);
  torch::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(5);
  trainer.take_step();
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

}  // namespace
}  // namespace lockstep::test
