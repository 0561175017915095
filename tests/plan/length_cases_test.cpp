// Reported failures about the length of a run, its schedule and its warm-up. The number names the report.

#include <cmath>
#include <vector>

#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

/// The weight after every update of the model w * x with x = 1, 2, ..., N in order, trained by plain SGD with the
/// mean over the samples of each step.
std::vector<double> train_linear_model(const PlanOptions& options, std::int64_t num_samples) {
  TrainingPlan plan = TrainingPlan::fresh(options, samples(num_samples), 1);
  std::vector<double> weights;
  double weight = 0.0;
  while (!plan.finished()) {
    double sum = 0.0;
    for (const std::int64_t id : next_ids(plan)) sum += static_cast<double>(id + 1);
    const StepPlan step = plan.next_step();
    weight -= step.learning_rate * sum / static_cast<double>(step.num_samples);
    weights.push_back(weight);
    plan.complete_step(true);
  }
  return weights;
}

PlanOptions constant_run(std::int64_t accumulation, const std::string& epochs) {
  PlanOptions options = run_of(1, accumulation, epochs);
  options.shuffle = ShuffleKind::sequential;
  options.schedule.kind = ScheduleKind::constant;
  options.schedule.learning_rate = 1.0;
  return options;
}

void expect_rates(const std::vector<double>& rates, const std::vector<std::pair<std::size_t, double>>& expected) {
  for (const auto& [step, rate] : expected) {
    ASSERT_LT(step, rates.size());
    EXPECT_NEAR(rates[step], rate, 1e-12 * rate) << "step " << step;
  }
}

TEST(Cases, C001LengthUnderSharding) {
  PlanOptions options = run_of(10, 1, "4");
  options.schedule.warmup_steps = 20;
  const TrainingPlan plan = TrainingPlan::fresh(options, samples(1000), 4);
  EXPECT_EQ(plan.total_steps(), 100);
  expect_rates(rates_to_the_end(plan), {{0, 0.0},
                                        {1, 5e-5},
                                        {10, 5e-4},
                                        {19, 9.5e-4},
                                        {20, 1e-3},
                                        {24, 9.5e-4},
                                        {25, 9.375e-4},
                                        {50, 6.25e-4},
                                        {60, 5e-4},
                                        {99, 1.25e-5}});
}

TEST(Cases, C002LeftOverMicroBatchesMakeAStepOfTheirOwn) {
  const auto weights = train_linear_model(constant_run(4, "3"), 7);
  ASSERT_EQ(weights.size(), 6u);
  EXPECT_DOUBLE_EQ(weights[0], -2.5);
  EXPECT_DOUBLE_EQ(weights[1], -8.5);
  EXPECT_DOUBLE_EQ(weights[2], -11.0);
}

TEST(Cases, C003ExactlyDivisibleEpochAddsNoUpdate) {
  EXPECT_EQ(train_linear_model(constant_run(4, "2"), 8), (std::vector<double>{-2.5, -9.0, -11.5, -18.0}));
}

TEST(Cases, C004EpochShorterThanTheAccumulationWindow) {
  EXPECT_EQ(train_linear_model(constant_run(8, "5"), 3), (std::vector<double>{-2.0, -4.0, -6.0, -8.0, -10.0}));
}

TEST(Cases, C005ShardingDoesNotChangeTheLength) {
  PlanOptions options = run_of(60, 1, "31");
  TrainingPlan plan = TrainingPlan::fresh(options, samples(1613), 9);
  EXPECT_EQ(plan.batch().steps_per_epoch(), 3);
  EXPECT_EQ(rates_to_the_end(plan).size(), 93u);
  options.drop_last = true;
  plan = TrainingPlan::fresh(options, samples(1613), 9);
  EXPECT_EQ(plan.batch().steps_per_epoch(), 2);
  EXPECT_EQ(rates_to_the_end(plan).size(), 62u);
}

TEST(Cases, C005StepCountsOfAllKnownTrainers) {
  struct Row {
    std::int64_t num_samples;
    int ranks;
    std::int64_t micro_batch, accumulation, epochs, steps_per_epoch, total_steps;
  };
  const std::vector<Row> rows{
      {1000, 4, 10, 1, 4, 25, 100},  {1613, 9, 60, 1, 31, 3, 93},   {10000, 2, 32, 1, 1, 157, 157},
      {10000, 2, 32, 4, 3, 40, 120}, {7, 1, 1, 4, 3, 2, 6},         {8, 1, 1, 4, 2, 2, 4},
      {3, 1, 1, 8, 5, 1, 5},         {50000, 8, 32, 4, 3, 49, 147}, {1000, 3, 7, 2, 2, 24, 48},
      {100, 8, 16, 1, 5, 1, 5},      {40, 1, 128, 1, 3, 1, 3},      {219872, 1, 8, 4, 1, 6871, 6871},
      {100, 1, 1, 4, 30, 25, 750},   {10, 1, 1, 4, 4, 3, 12},       {5, 8, 1, 1, 2, 1, 2},
      {65536, 16, 32, 3, 2, 43, 86}};
  for (const Row& row : rows) {
    const PlanOptions options = run_of(row.micro_batch, row.accumulation, text(row.epochs));
    const TrainingPlan plan = TrainingPlan::fresh(options, samples(row.num_samples), row.ranks);
    EXPECT_EQ(plan.batch().steps_per_epoch(), row.steps_per_epoch) << row.num_samples;
    EXPECT_EQ(plan.total_steps(), row.total_steps) << row.num_samples;
    // Nested ceilings: batches of a rank, then windows of accumulation.
    const auto ceil = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    EXPECT_EQ(ceil(ceil(ceil(row.num_samples, row.micro_batch), row.ranks), row.accumulation), row.steps_per_epoch);
  }
}

TEST(Cases, C006RefusesAnEpochWithoutABatch) {
  const auto refused = [](std::int64_t num_samples, int ranks, std::int64_t micro_batch) {
    PlanOptions options = run_of(micro_batch, 1, "3");
    options.drop_last = true;
    expect_refusal([&] { TrainingPlan::fresh(options, samples(num_samples), ranks); },
                   {text(num_samples, " samples"), text(ranks, " ranks"), text("micro-batch ", micro_batch)});
  };
  refused(40, 1, 128);
  refused(100, 8, 16);
  refused(5, 8, 1);
  expect_refusal([] { TrainingPlan::fresh(run_of(1, 1, "1"), samples(0), 1); }, {"0 training samples"});
}

TEST(Cases, C007MaxStepsIsTheHorizon) {
  PlanOptions options = run_of(1, 1, "10");
  options.max_steps = 50;
  options.schedule.kind = ScheduleKind::cosine;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(12), 1);
  EXPECT_EQ(plan.total_steps(), 50);
  EXPECT_TRUE(warns(plan, "--max-steps 50 wins over --num-train-epochs 10"));
  expect_rates(rates_to_the_end(plan), {{0, 1e-3}, {10, 9.0450849718737e-4}, {25, 5e-4}, {49, 9.866357858642206e-7}});
  take_steps(plan, 49);
  EXPECT_EQ(plan.next_step().epoch, 4);
  options.schedule.kind = ScheduleKind::linear;
  expect_rates(rates_to_the_end(TrainingPlan::fresh(options, samples(12), 1)), {{49, 2e-5}});
}

TEST(Cases, C008DataThatShardsItselfIsNotDividedTwice) {
  const DataShape sharded{{}, {5000, 5000}};
  TrainingPlan plan = TrainingPlan::fresh(run_of(32, 1, "1"), sharded, 2);
  EXPECT_EQ(plan.total_steps(), 157);
  EXPECT_EQ(plan.total_steps(), TrainingPlan::fresh(run_of(32, 1, "1"), samples(10000), 2).total_steps());
  for (int step = 0; step < 156; ++step) plan.complete_step(true);
  EXPECT_EQ(plan.next_step().num_samples, 16);
  EXPECT_EQ(plan.batch().share_at(plan.next_step().first_sample, 16, 1).num_samples, 8);
}

TEST(Cases, C008AStreamStartsAgainUntilItsStepsAreDone) {
  PlanOptions options = run_of(4, 1, "1");
  expect_refusal([&] { TrainingPlan::fresh(options, DataShape{}, 1); }, {"not known", "--max-steps"});
  options.num_train_epochs.reset();
  options.max_steps = 7;
  TrainingPlan plan = TrainingPlan::fresh(options, DataShape{}, 1);
  std::vector<std::int64_t> batches;
  std::vector<double> rates;
  std::int64_t read = 0;  // of a stream that holds ten samples
  while (!plan.finished()) {
    if (10 - read < plan.next_step().num_samples) plan.stream_ended(10 - read);
    const StepPlan step = plan.next_step();
    EXPECT_EQ(step.first_sample, read);
    batches.push_back(step.num_samples);
    rates.push_back(step.learning_rate);
    plan.complete_step(true);
    read = plan.progress().sample_in_epoch;
  }
  EXPECT_EQ(batches, (std::vector<std::int64_t>{4, 4, 2, 4, 4, 2, 4}));
  EXPECT_EQ(plan.progress().epoch, 2);
  for (std::size_t step = 0; step < 7; ++step) {
    EXPECT_DOUBLE_EQ(rates[step], 1e-3 * static_cast<double>(7 - step) / 7.0);
  }
}

TEST(Cases, C009UnevenShardsRunTheLongestRanksSteps) {
  const DataShape uneven{{}, {100, 96, 104, 90}};
  PlanOptions options = run_of(16, 1, "3");
  TrainingPlan plan = TrainingPlan::fresh(options, uneven, 4);
  EXPECT_EQ(plan.total_steps(), 21);
  EXPECT_TRUE(warns(plan, "between 90 and 104 samples"));
  std::vector<int> used(390, 0);
  for (int step = 0; step < 7; ++step) {
    for (const std::int64_t id : next_ids(plan)) ++used[static_cast<std::size_t>(id)];
    if (step == 6) {
      EXPECT_EQ(plan.next_step().num_samples, 4 + 8);  // ranks 0 and 2 alone
      EXPECT_EQ(plan.next_step().num_micro_batches, 2);
    }
    take_step(plan);
  }
  EXPECT_EQ(used, std::vector<int>(390, 1));
  EXPECT_EQ(plan.progress().epoch, 1);

  options.drop_last = true;
  plan = TrainingPlan::fresh(options, uneven, 4);
  EXPECT_EQ(plan.total_steps(), 18);
  EXPECT_EQ(plan.batch().used_samples(), 96 + 96 + 96 + 80);
}

TEST(Cases, C010HorizonInEpochsCountsUpdates) {
  PlanOptions options = run_of(1, 1, "1000");
  options.schedule.kind = ScheduleKind::cosine;
  const TrainingPlan plan = TrainingPlan::fresh(options, samples(250), 1);
  EXPECT_EQ(plan.total_steps(), 250000);
  expect_rates(rates_to_the_end(plan), {{250, 9.999975326009292e-4}, {1000, 9.999605221019082e-4}, {125000, 5e-4}});
  EXPECT_NEAR(rates_to_the_end(plan).back(), 3.9e-14, 1e-15);
}

TEST(Cases, C011CyclesCountInUpdates) {
  PlanOptions options = run_of(1, 2, "1");
  options.schedule.kind = ScheduleKind::cosine_with_restarts;
  options.schedule.num_cycles = 10.0;
  const auto rates = rates_to_the_end(TrainingPlan::fresh(options, samples(1000), 1));
  ASSERT_EQ(rates.size(), 500u);
  for (std::size_t peak = 0; peak < 500; peak += 50) EXPECT_EQ(rates[peak], 1e-3) << peak;
  expect_rates(rates, {{25, 5e-4}, {49, 9.866357858642206e-7}});

  options = run_of(1, 1, "1");
  options.schedule.kind = ScheduleKind::cosine_with_restarts;
  options.schedule.num_cycles = 3.0;
  const auto three = rates_to_the_end(TrainingPlan::fresh(options, samples(12), 1));
  for (std::size_t step = 0; step < 12; step += 4) {
    EXPECT_DOUBLE_EQ(three[step], 1e-3);
    EXPECT_DOUBLE_EQ(three[step + 2], 5e-4);
    EXPECT_NEAR(three[step + 1], 0.85355339e-3, 1e-11);
    EXPECT_NEAR(three[step + 3], 0.14644661e-3, 1e-11);
  }
  options.schedule.num_cycles = 1.0;
  const auto one = rates_to_the_end(TrainingPlan::fresh(options, samples(12), 1));
  options.schedule.kind = ScheduleKind::cosine;
  options.schedule.num_cycles.reset();
  EXPECT_EQ(one, rates_to_the_end(TrainingPlan::fresh(options, samples(12), 1)));
}

TEST(Cases, C012FractionalEpochs) {
  TrainingPlan plan = TrainingPlan::fresh(run_of(1, 4, "2.5"), samples(10), 1);
  EXPECT_EQ(plan.total_steps(), 8);
  std::int64_t micro_batches = 0;
  std::vector<double> factors;
  while (!plan.finished()) {
    micro_batches += plan.next_step().num_micro_batches;
    factors.push_back(plan.next_step().learning_rate / 1e-3);
    plan.complete_step(true);
  }
  EXPECT_EQ(micro_batches, 28);
  EXPECT_EQ(plan.progress().epoch, 2);
  for (std::size_t step = 0; step < 8; ++step) EXPECT_DOUBLE_EQ(factors[step], 1.0 - static_cast<double>(step) / 8.0);
}

TEST(Cases, C014WarmUpAsLongAsTheRunIsRefusedUnlessSaid) {
  for (const std::int64_t warmup : {10, 20}) {
    PlanOptions options = run_of(1, 1, "1");
    options.schedule.warmup_steps = warmup;
    for (const ScheduleKind kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::polynomial}) {
      options.schedule.kind = kind;
      expect_refusal([&] { TrainingPlan::fresh(options, samples(10), 1); },
                     {text(warmup, " steps"), "run has 10", "constant-with-warmup"});
    }
    options.schedule.kind = ScheduleKind::constant_with_warmup;
    const TrainingPlan plan = TrainingPlan::fresh(options, samples(10), 1);
    EXPECT_TRUE(warns(plan, "is not over when the run ends"));
    const auto rates = rates_to_the_end(plan);
    for (std::size_t step = 0; step < 10; ++step) {
      EXPECT_DOUBLE_EQ(rates[step], 1e-3 * static_cast<double>(step) / static_cast<double>(warmup));
    }
  }
}

TEST(Cases, C015WarmUpOfZeroAndOneSteps) {
  PlanOptions options = run_of(1, 1, "1");
  options.schedule.warmup_steps = 0;
  expect_rates(rates_to_the_end(TrainingPlan::fresh(options, samples(10), 1)), {{0, 1e-3}});
  options.schedule.warmup_steps = 1;
  options.schedule.warmup_ratio = "0.0";
  expect_rates(rates_to_the_end(TrainingPlan::fresh(options, samples(10), 1)),
               {{0, 0.0}, {1, 1e-3}, {2, 8e-3 / 9.0}});
  options.schedule.warmup_ratio = "0.5";
  expect_refusal([&] { TrainingPlan::fresh(options, samples(10), 1); }, {"--warmup-steps 1", "--warmup-ratio 0.5"});
}

TEST(Cases, C016TheFirstUpdateAlreadyUsesTheSchedule) {
  PlanOptions options = run_of(1, 1, "1");
  options.schedule.kind = ScheduleKind::constant_with_warmup;
  options.schedule.learning_rate = 1e-4;
  options.schedule.warmup_steps = 100;
  double weight = 1.0;
  std::vector<double> weights;
  for (const double rate : rates_to_the_end(TrainingPlan::fresh(options, samples(200), 1))) {
    weights.push_back(weight -= rate);
  }
  EXPECT_EQ(weights[0], 1.0);
  EXPECT_NEAR(weights[1], 0.999999, 1e-14);
  EXPECT_NEAR(weights[99], 0.99505, 1e-12);
  EXPECT_NEAR(weights[100], 0.99495, 1e-12);
}

TEST(Cases, C017DecayStartsWhenWarmUpEnds) {
  PlanOptions options = run_of(1, 1, "1");
  options.schedule.kind = ScheduleKind::polynomial;
  options.schedule.learning_rate = 0.005;
  options.schedule.lr_end = 0.0;
  options.schedule.warmup_steps = 10000;
  expect_rates(rates_to_the_end(TrainingPlan::fresh(options, samples(40000), 1)), {{5000, 0.0025},
                                                                                   {9999, 0.0049995},
                                                                                   {10000, 0.005},
                                                                                   {10001, 0.0049998333333333336},
                                                                                   {25000, 0.0025},
                                                                                   {39999, 1.666666666666483e-07}});
}

TEST(Cases, C018WarmUpCountsUpdates) {
  PlanOptions options = run_of(1, 4, "1");
  options.schedule.warmup_steps = 8;
  const auto rates = rates_to_the_end(TrainingPlan::fresh(options, samples(160), 1));
  ASSERT_EQ(rates.size(), 40u);
  expect_rates(rates, {{1, 1.25e-4}, {2, 2.5e-4}, {7, 8.75e-4}, {8, 1e-3}, {39, 3.125e-5}});
}

TEST(Cases, C037SkippedUpdatesHoldTheSchedule) {
  PlanOptions options = run_of(1, 1, "1");
  options.schedule.warmup_steps = 2;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(10), 1);
  const std::vector<double> expected{0.0, 5e-4, 1e-3, 8.75e-4, 8.75e-4, 8.75e-4, 7.5e-4, 6.25e-4, 5e-4, 3.75e-4};
  for (std::size_t attempt = 0; attempt < 10; ++attempt) {
    EXPECT_NEAR(plan.next_step().learning_rate, expected[attempt], 1e-15) << attempt;
    plan.complete_step(attempt != 3 && attempt != 4);
  }
  EXPECT_TRUE(plan.finished());
  EXPECT_EQ(plan.progress().steps_applied, 8);
  EXPECT_EQ(plan.progress().steps_skipped, 2);
  EXPECT_EQ(plan.progress().consumed_samples, 10);
}

}  // namespace
}  // namespace lockstep
