#include "runtime/plan/batch_plan.hpp"

#include "runtime/plan/exact.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

BatchPlan batch_of(std::optional<std::int64_t> global, std::optional<std::int64_t> micro,
                   std::optional<std::int64_t> accumulation, int ranks) {
  PlanOptions options;
  options.global_batch_size = global;
  options.micro_batch_size = micro;
  options.gradient_accumulation_steps = accumulation;
  return TrainingPlan::fresh(options, samples(10000), ranks).batch();
}

TEST(BatchPlan, AnyTwoOfItsNumbersGiveTheThird) {
  EXPECT_EQ(batch_of({}, 4, 5, 2).global_batch_size, 40);
  EXPECT_EQ(batch_of(40, 4, {}, 2).accumulation_steps(), 5);
  EXPECT_EQ(batch_of(40, {}, 5, 2).micro_batch_size, 4);
  EXPECT_EQ(batch_of(40, 4, 5, 2).global_batch_size, 40);
  EXPECT_EQ(batch_of({}, 4, {}, 3).global_batch_size, 12);
  EXPECT_EQ(batch_of({}, {}, 2, 3).global_batch_size, 48);
  EXPECT_EQ(batch_of({}, {}, {}, 3).global_batch_size, 24);
  EXPECT_EQ(batch_of(64, {}, {}, 3).micro_batch_size, 8);
  EXPECT_EQ(batch_of(6, {}, {}, 3).micro_batch_size, 6);
}

TEST(BatchPlan, RefusesNumbersThatContradictEachOther) {
  expect_refusal([] { batch_of(42, 4, 5, 2); },
                 {"--global-batch-size 42", "--micro-batch-size 4", "2 ranks", "= 40"});
  expect_refusal([] { batch_of(0, {}, {}, 2); }, {"--global-batch-size is 0"});
  expect_refusal([] { batch_of({}, -1, {}, 2); }, {"--micro-batch-size is -1"});
  expect_refusal([] { batch_of({}, {}, {}, 0); }, {"ranks is 0"});
  const std::int64_t huge = std::int64_t{1} << 62;
  expect_refusal([huge] { batch_of({}, huge, huge, 2); }, {"64 bits"});
}

TEST(BatchPlan, DealsEverySampleOnceOnAnyNumberOfRanks) {
  for (std::int64_t samples = 1; samples < 60; ++samples) {
    for (std::int64_t micro = 1; micro < 9; ++micro) {
      for (int ranks = 1; ranks < 10; ++ranks) {
        const BatchPlan plan{1000, samples, micro, ranks, false, {}};
        std::int64_t next = 100;
        std::int64_t next_micro_batch = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const StepShare share = plan.share_at(100, samples, rank);
          EXPECT_EQ(share.micro_batches.begin, next_micro_batch);
          next_micro_batch = share.micro_batches.end;
          EXPECT_TRUE(share.num_samples == 0 || share.first_sample == next);
          next += share.num_samples;
          EXPECT_LE(share.micro_batches.size(), plan.accumulation_steps());
        }
        EXPECT_EQ(next, 100 + samples);
        EXPECT_EQ(next_micro_batch, plan.num_micro_batches(samples));
      }
    }
  }
}

TEST(BatchPlan, SaysWhatAColleagueWouldSay) {
  PlanOptions options;
  options.global_batch_size = 40;
  options.micro_batch_size = 10;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 8);
  EXPECT_TRUE(warns(plan, "4 of 8 ranks never get work"));
  EXPECT_EQ(plan.batch().utilization(), 0.5);
  plan = TrainingPlan::fresh(options, samples(171), 4);
  EXPECT_TRUE(plan.warnings().empty());
  EXPECT_EQ(plan.batch().utilization(), 1.0);
  EXPECT_TRUE(warns(TrainingPlan::fresh(options, samples(40), 4), "one step an epoch"));
  EXPECT_TRUE(warns(TrainingPlan::fresh(options, samples(171), 3), "busy only 66 % of a step"));

  options.schedule.kind = ScheduleKind::multi_step;
  options.schedule.milestones = {5, 100};
  EXPECT_TRUE(
      warns(TrainingPlan::fresh(options, samples(171), 4), "last milestone is step 100, the run has 15 steps"));
  options.schedule.kind = ScheduleKind::exponential;
  EXPECT_TRUE(warns(TrainingPlan::fresh(options, samples(171), 4), "ends long before the run"));
  options.schedule.kind = ScheduleKind::constant;
  options.schedule.warmup_steps = 3;
  EXPECT_TRUE(warns(TrainingPlan::fresh(options, samples(171), 4), "constant has no warm-up"));
}

TEST(RunEnd, ReadsEpochsExactly) {
  const auto steps = [](const std::string& epochs, std::int64_t num_samples) {
    return TrainingPlan::fresh(run_of(1, 1, epochs), samples(num_samples), 1).total_steps();
  };
  EXPECT_EQ(steps("1.1", 10), 11);  // 0.1 x 10 is 1, in binary a little more
  EXPECT_EQ(steps("2.5", 3), 8);
  EXPECT_EQ(steps("0.9", 5), 5);
  EXPECT_EQ(steps("0.0001", 5), 1);
  EXPECT_EQ(steps("3", 5), 15);
  EXPECT_EQ(steps("1e1", 5), 50);
  for (const char* wrong : {"", "-1", "two", "1.2.3", "0", "0.0", "1e", "nan", "1234567890123456789"}) {
    expect_refusal([&] { steps(wrong, 5); }, {"--num-train-epochs", wrong});
  }
}

TEST(RunEnd, EndsAfterExactlyTheSamplesAskedFor) {
  PlanOptions options = run_of(4, 1, "1");
  options.num_train_epochs.reset();
  options.train_samples = 205;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 10);
  EXPECT_EQ(plan.total_steps(), 5 + 1);
  while (!plan.finished()) plan.complete_step(true);
  EXPECT_EQ(plan.progress().consumed_samples, 205);
  options.max_steps = 3;
  expect_refusal([&] { TrainingPlan::fresh(options, samples(171), 10); }, {"--train-samples 205", "--max-steps 3"});
}

TEST(RunEnd, CountsSamplesOfEpochsThatDropTheirTail) {
  PlanOptions options = run_of(40, 1, "1");
  options.num_train_epochs.reset();
  options.drop_last = true;
  options.train_samples = 3 * 160 + 85;  // an epoch of 171 uses 160
  TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 1);
  EXPECT_EQ(plan.total_steps(), 3 * 4 + 2);
  while (!plan.finished()) plan.complete_step(true);
  EXPECT_EQ(plan.progress().epoch, 3);
  EXPECT_EQ(plan.progress().consumed_samples, 3 * 160 + 80);
  options.train_samples = 39;
  expect_refusal([&] { TrainingPlan::fresh(options, samples(171), 1); }, {"--train-samples 39", "no step"});
}

TEST(WarmUp, IsExactInDecimal) {
  const auto warmup = [](const std::string& ratio, std::int64_t steps) {
    PlanOptions options = run_of(1, 1, "1");
    options.schedule.warmup_ratio = ratio;
    return TrainingPlan::fresh(options, samples(steps), 1).warmup_steps();
  };
  EXPECT_EQ(warmup("0.07", 100), 7);
  EXPECT_EQ(warmup("0.1", 30), 3);
  EXPECT_EQ(warmup("0.29", 100), 29);
  EXPECT_EQ(warmup("0.05", 30), 2);
  EXPECT_EQ(warmup("0", 30), 0);
}

TEST(WarmUp, CountsTheStepsThatTakeItsSamples) {
  const auto warmup = [](std::int64_t warmup_samples) {
    PlanOptions options = run_of(40, 1, "6");
    options.schedule.warmup_samples = warmup_samples;
    return TrainingPlan::fresh(options, samples(171), 1).warmup_steps();
  };
  EXPECT_EQ(warmup(1), 1);
  EXPECT_EQ(warmup(40), 1);
  EXPECT_EQ(warmup(41), 2);
  EXPECT_EQ(warmup(171), 5);  // the fifth step has 11 samples
  EXPECT_EQ(warmup(172), 6);
  EXPECT_EQ(warmup(2 * 171 + 80), 12);
}

TEST(Decimal, IsComparedByValue) {
  EXPECT_EQ(Decimal("2.50", "x"), Decimal("2.5", "x"));
  EXPECT_EQ(Decimal("1e-3", "x"), Decimal("0.001", "x"));
  EXPECT_FALSE(Decimal("0.1", "x") == Decimal("0.10000000000000001", "x"));
  EXPECT_EQ(Decimal("0.07", "x").ceil_times(100), 7);
}

}  // namespace
}  // namespace lockstep
