#include "runtime/plan/sampler.hpp"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

TEST(EpochOrder, IsAPermutation) {
  for (std::int64_t num_samples = 1; num_samples <= 300; ++num_samples) {
    const EpochOrder order(ShuffleKind::permutation, 5, num_samples % 7, num_samples);
    std::vector<bool> seen(static_cast<std::size_t>(num_samples), false);
    for (std::int64_t position = 0; position < num_samples; ++position) {
      const std::int64_t id = order[position];
      ASSERT_TRUE(id >= 0 && id < num_samples);
      EXPECT_FALSE(seen[static_cast<std::size_t>(id)]);
      seen[static_cast<std::size_t>(id)] = true;
    }
  }
}

TEST(EpochOrder, NeverChanges) {
  const EpochOrder order(ShuffleKind::permutation, 7, 3, 1000);
  const std::vector<std::int64_t> stored_runs_rely_on{185, 155, 443, 540, 251, 757, 873, 608, 551, 744, 597, 265};
  for (std::size_t i = 0; i < stored_runs_rely_on.size(); ++i) {
    EXPECT_EQ(order[static_cast<std::int64_t>(i)], stored_runs_rely_on[i]);
  }
}

TEST(EpochOrder, SendsEverySampleToEveryPositionEquallyOften) {
  // Chi-square of 10 x 10 cells with 81 degrees of freedom: above 140 in one of 20,000 fair shuffles.
  constexpr int num_samples = 10;
  constexpr int num_epochs = 20000;
  std::map<std::pair<std::int64_t, std::int64_t>, int> counts;
  std::set<std::int64_t> pairs;
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    const EpochOrder order(ShuffleKind::permutation, 1, epoch, num_samples);
    for (std::int64_t position = 0; position < num_samples; ++position) ++counts[{position, order[position]}];
    pairs.insert(order[0] * num_samples + order[1]);
  }
  double chi_square = 0.0;
  for (const auto& [cell, count] : counts) {
    const double expected = static_cast<double>(num_epochs) / num_samples;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_EQ(counts.size(), 100u);
  EXPECT_LT(chi_square, 140.0);
  EXPECT_EQ(pairs.size(), 90u);  // every pair of neighbours occurs
}

TEST(EpochOrder, ReachesEveryOrderOfFewSamples) {
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 2000; ++epoch) {
    const EpochOrder order(ShuffleKind::permutation, 9, epoch, 5);
    orders.insert({order[0], order[1], order[2], order[3], order[4]});
  }
  EXPECT_EQ(orders.size(), 120u);
}

TEST(EpochOrder, OfHugeDataCostsAsMuchAsOfSmall) {
  // Processor time, not time on the wall; the best of five, so that a busy machine does not matter.
  double best_seconds = 1.0;
  std::int64_t sum = 0;
  constexpr int num_positions = 200000;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const EpochOrder order(ShuffleKind::permutation, 3, attempt, 1'000'000'000'000);
    const std::clock_t start = std::clock();
    for (std::int64_t i = 0; i < num_positions; ++i) sum += order[i * 4'999'999];
    best_seconds = std::min(best_seconds, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  EXPECT_GT(sum, 0);
  EXPECT_LT(best_seconds / num_positions, 1e-6);
}

TEST(TrainingPlan, OfTenToTheTwelveSamplesAndTenToTheSevenStepsIsImmediate) {
  PlanOptions options;
  options.global_batch_size = 1'000'000;
  options.micro_batch_size = 8;
  options.num_train_epochs = "10.5";
  options.schedule.kind = ScheduleKind::cosine;
  options.schedule.warmup_samples = 123'456'789'012;
  const DataShape data = samples(1'000'000'000'000);
  const std::clock_t start = std::clock();
  for (int i = 0; i < 1000; ++i) {  // each touches every number of the plan; one pass over the steps takes seconds
    TrainingPlan plan = TrainingPlan::fresh(options, data, 4096);
    EXPECT_EQ(plan.total_steps(), 10'500'000);
    EXPECT_EQ(plan.warmup_steps(), 123'457);
    plan.complete_step(true);
    options.on_rank_change = RankChangePolicy::keep_rank_batch;
    plan = TrainingPlan::resumed(options, data, 2048, stored(plan));
    EXPECT_EQ(plan.steps_left(), 20'999'998);
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0);
}

}  // namespace
}  // namespace lockstep
