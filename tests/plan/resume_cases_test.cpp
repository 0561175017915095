// Reported failures about resuming and about the order of samples. The number names the report.

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

TrainingPlan plan_after(const PlanOptions& options, std::int64_t num_samples, int ranks, int steps) {
  TrainingPlan plan = TrainingPlan::fresh(options, samples(num_samples), ranks);
  take_steps(plan, steps);
  return plan;
}

/// The ids of all samples to the end, in the order in which they are read.
std::vector<std::int64_t> ids_to_the_end(TrainingPlan plan) {
  std::vector<std::int64_t> all;
  while (!plan.finished()) {
    for (const std::int64_t id : next_ids(plan)) all.push_back(id);
    take_step(plan);
  }
  return all;
}

std::vector<std::int64_t> order_of(std::int64_t num_samples, std::uint64_t seed, std::int64_t epoch) {
  PlanOptions options = run_of(1, 1, "1");
  options.seed = seed;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(num_samples));
  TrainingPlan::fresh(options, samples(num_samples), 1).sample_ids(epoch, 0, ids);
  return ids;
}

TEST(Cases, C019NextRateAfterARestart) {
  const std::vector<std::pair<ScheduleKind, double>> kinds{{ScheduleKind::linear, 8.125e-4},
                                                           {ScheduleKind::cosine, 9.157348061512727e-4},
                                                           {ScheduleKind::cosine_with_restarts, 9.157348061512727e-4},
                                                           {ScheduleKind::polynomial, 8.1251875e-4},
                                                           {ScheduleKind::constant_with_warmup, 1e-3}};
  for (const auto& [kind, rate] : kinds) {
    PlanOptions options = run_of(1, 1, "1");
    options.schedule.kind = kind;
    options.schedule.warmup_steps = 4;
    const TrainingPlan stopped = plan_after(options, 20, 1, 7);
    const AttributeTree tree = stored(stopped);
    EXPECT_EQ(attribute<std::int64_t>(tree, "progress", "steps_applied"), 7);
    const TrainingPlan resumed = TrainingPlan::resumed(options, samples(20), 1, tree);
    EXPECT_NEAR(resumed.next_step().learning_rate, rate, 1e-12 * rate);
    EXPECT_EQ(rates_to_the_end(resumed), rates_to_the_end(stopped));
  }
}

TEST(Cases, C020TheScheduleAdvancesOnlyOnceOnLoad) {
  PlanOptions options = run_of(1, 1, "1");
  for (const auto& [kind, rate] :
       {std::pair{ScheduleKind::cosine, 7.938926261462366e-4}, std::pair{ScheduleKind::linear, 7e-4}}) {
    options.schedule.kind = kind;
    const AttributeTree tree = stored(plan_after(options, 100, 1, 30));
    EXPECT_NEAR(TrainingPlan::resumed(options, samples(100), 1, tree).next_step().learning_rate, rate, 1e-15);
  }
}

TEST(Cases, C022StartEpochCountsUpdates) {
  PlanOptions options = run_of(1, 4, "1");
  options.num_train_epochs.reset();
  options.max_steps = 750;
  const AttributeTree tree = stored(plan_after(options, 100, 1, 500));
  TrainingPlan plan = TrainingPlan::resumed(options, samples(100), 1, tree);
  EXPECT_EQ(plan.progress().epoch, 20);
  EXPECT_EQ(plan.progress().sample_in_epoch, 0);
  EXPECT_EQ(plan.progress().steps_taken, 500);
  EXPECT_EQ(plan.steps_left(), 250);
  while (!plan.finished()) plan.complete_step(true);
  EXPECT_EQ(plan.progress().epoch, 30);
}

TEST(Cases, C022BatchesToSkipInTheEpoch) {
  struct Row {
    std::int64_t batches, accumulation, step, updates_per_epoch, epoch, batches_to_skip;
  };
  for (const Row& row : {Row{27484, 4, 2748, 6871, 0, 10992}, Row{100, 4, 500, 25, 20, 0}, Row{16, 4, 9, 4, 2, 4}}) {
    TrainingPlan plan = TrainingPlan::fresh(run_of(1, row.accumulation, "40"), samples(row.batches), 1);
    EXPECT_EQ(plan.batch().steps_per_epoch(), row.updates_per_epoch);
    for (std::int64_t step = 0; step < row.step; ++step) plan.complete_step(true);
    EXPECT_EQ(plan.progress().epoch, row.epoch);
    EXPECT_EQ(plan.progress().sample_in_epoch, row.batches_to_skip);
  }
}

TEST(Cases, C023TheFirstBatchAfterTenIsTheEleventh) {
  PlanOptions options = run_of(2, 1, "1");
  options.shuffle = ShuffleKind::sequential;
  const AttributeTree tree = stored(plan_after(options, 40, 1, 10));
  const TrainingPlan plan = TrainingPlan::resumed(options, samples(40), 1, tree);
  EXPECT_EQ(next_ids(plan), (std::vector<std::int64_t>{20, 21}));
}

TEST(Cases, C024TheSkipAppliesToOneEpochOnly) {
  const PlanOptions options = run_of(1, 1, "3");
  const AttributeTree tree = stored(plan_after(options, 10, 1, 16));
  const TrainingPlan plan = TrainingPlan::resumed(options, samples(10), 1, tree);
  EXPECT_EQ(plan.progress().epoch, 1);
  EXPECT_EQ(rates_to_the_end(plan).size(), 14u);
  EXPECT_EQ(plan.total_steps(), 30);
}

TEST(Cases, C025SamplesOfTheInterruptedEpoch) {
  const PlanOptions options = run_of(4, 1, "1");
  const TrainingPlan unbroken = TrainingPlan::fresh(options, samples(64), 1);
  const std::vector<std::int64_t> all = ids_to_the_end(unbroken);
  TrainingPlan stopped = unbroken;
  take_steps(stopped, 5);
  const TrainingPlan resumed = TrainingPlan::resumed(options, samples(64), 1, stored(stopped));
  std::vector<std::int64_t> joined(all.begin(), all.begin() + 20);
  for (const std::int64_t id : ids_to_the_end(resumed)) joined.push_back(id);
  EXPECT_EQ(joined, all);
  std::sort(joined.begin(), joined.end());
  for (std::int64_t id = 0; id < 64; ++id) EXPECT_EQ(joined[static_cast<std::size_t>(id)], id);
}

TEST(Cases, C026RestartInsideALaterEpochUsesThatEpochsOrder) {
  const PlanOptions options = run_of(2, 1, "3");
  const TrainingPlan unbroken = TrainingPlan::fresh(options, samples(20), 2);
  TrainingPlan stopped = unbroken;
  take_steps(stopped, 5 + 3);
  const TrainingPlan resumed = TrainingPlan::resumed(options, samples(20), 2, stored(stopped));
  const auto rest = ids_to_the_end(resumed);
  const auto all = ids_to_the_end(unbroken);
  EXPECT_EQ(rest, std::vector<std::int64_t>(all.begin() + 32, all.end()));
}

TEST(Cases, C027CheckpointExactlyAtAnEpochEnd) {
  const PlanOptions options = run_of(4, 1, "3");
  const AttributeTree tree = stored(plan_after(options, 20, 1, 5));
  const TrainingPlan plan = TrainingPlan::resumed(options, samples(20), 1, tree);
  EXPECT_EQ(plan.next_step().epoch, 1);
  EXPECT_EQ(plan.next_step().first_sample, 0);
  std::vector<std::int64_t> expected(4);
  plan.sample_ids(1, 0, expected);
  EXPECT_EQ(next_ids(plan), expected);
  EXPECT_EQ(plan.steps_left(), 10);
}

TEST(Cases, C028RestartOfAFinishedRunDoesNothing) {
  for (const RankChangePolicy policy : {RankChangePolicy::keep_global_batch, RankChangePolicy::keep_rank_batch}) {
    PlanOptions options = run_of(1, 1, "1");
    options.on_rank_change = policy;
    const AttributeTree tree = stored(plan_after(options, 6, 1, 6));
    for (const int ranks : {1, 2, 3}) {
      const TrainingPlan plan = TrainingPlan::resumed(options, samples(6), ranks, tree);
      EXPECT_TRUE(plan.finished());
      EXPECT_EQ(plan.progress().steps_taken, 6);
      EXPECT_EQ(plan.total_steps(), 6);
    }
  }
}

TEST(Cases, C029ASignalInsideAWindowDropsThePartOrFinishesIt) {
  PlanOptions options = run_of(1, 4, "1");
  options.shuffle = ShuffleKind::sequential;
  options.schedule.kind = ScheduleKind::constant;
  options.schedule.learning_rate = 0.1;
  for (const int steps : {2, 3}) {  // micro-batch 10 belongs to step 3
    TrainingPlan plan = TrainingPlan::fresh(options, samples(32), 1);
    double weight = 0.0;
    for (int step = 0; step < 8; ++step) {
      if (step == steps) plan = TrainingPlan::resumed(options, samples(32), 1, stored(plan));
      double sum = 0.0;
      for (const std::int64_t id : next_ids(plan)) sum += static_cast<double>(id + 1);
      weight -= plan.next_step().learning_rate * sum / 4.0;
      take_step(plan);
    }
    EXPECT_TRUE(plan.finished());
    EXPECT_NEAR(weight, -13.2, 1e-12);
  }
}

TEST(Cases, C031DifferentRankCountSameOrder) {
  PlanOptions options = run_of(2, 1, "2");
  options.shuffle = ShuffleKind::sequential;
  const AttributeTree tree = stored(plan_after(options, 48, 4, 3));
  std::vector<std::int64_t> rest(24);
  std::iota(rest.begin(), rest.end(), 24);

  TrainingPlan kept = TrainingPlan::resumed(options, samples(48), 2, tree);
  EXPECT_EQ(kept.total_steps(), 12);
  EXPECT_EQ(kept.batch().steps_between(24, 48), 3);
  auto ids = ids_to_the_end(kept);
  EXPECT_EQ(std::vector<std::int64_t>(ids.begin(), ids.begin() + 24), rest);

  options.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan smaller = TrainingPlan::resumed(options, samples(48), 2, tree);
  EXPECT_EQ(smaller.batch().global_batch_size, 4);
  EXPECT_EQ(smaller.batch().steps_between(24, 48), 6);
  EXPECT_EQ(smaller.batch().steps_per_epoch(), 12);
  EXPECT_EQ(smaller.total_steps(), 21);
  EXPECT_EQ(change_of(smaller, "total_steps").before, "12");
  EXPECT_EQ(change_of(smaller, "total_steps").after, "21");
  ids = ids_to_the_end(smaller);
  EXPECT_EQ(std::vector<std::int64_t>(ids.begin(), ids.begin() + 24), rest);

  options.num_train_epochs = "1";
  options.on_rank_change = RankChangePolicy::keep_rank_batch;
  const AttributeTree fifty = stored(plan_after(options, 50, 4, 3));
  TrainingPlan uneven = TrainingPlan::resumed(options, samples(50), 3, fifty);
  EXPECT_EQ(uneven.batch().global_batch_size, 6);
  EXPECT_EQ(uneven.steps_left(), 5);
  take_steps(uneven, 4);
  EXPECT_EQ(uneven.next_step().num_samples, 2);
}

TEST(Cases, C032LongerRunAfterTheRestart) {
  const std::vector<std::pair<ScheduleKind, double>> kinds{
      {ScheduleKind::cosine, 8.535533905932738e-4},
      {ScheduleKind::linear, 7.5e-4},
      {ScheduleKind::cosine_with_restarts, 1.4644660940672628e-4},
      {ScheduleKind::polynomial, 7.50025e-4}};
  for (const auto& [kind, rate] : kinds) {
    PlanOptions options = run_of(1, 1, "1");
    options.num_train_epochs.reset();
    options.max_steps = 500;
    options.schedule.kind = kind;
    if (kind == ScheduleKind::cosine_with_restarts) options.schedule.num_cycles = 3.0;
    const AttributeTree tree = stored(plan_after(options, 100, 1, 500));
    options.max_steps = 2000;
    expect_refusal([&] { TrainingPlan::resumed(options, samples(100), 1, tree); },
                   {"--max-steps 500", "--max-steps 2000", "--schedule-from"});

    options.schedule_from = ScheduleFrom::checkpoint;
    const TrainingPlan kept = TrainingPlan::resumed(options, samples(100), 1, tree);
    EXPECT_TRUE(kept.finished());
    EXPECT_TRUE(warns(kept, "--max-steps 2000"));

    options.schedule_from = ScheduleFrom::command_line;
    const TrainingPlan longer = TrainingPlan::resumed(options, samples(100), 1, tree);
    EXPECT_EQ(longer.total_steps(), 2000);
    EXPECT_NEAR(longer.next_step().learning_rate, rate, 1e-15);
    EXPECT_TRUE(warns(longer, "jumps"));
    TrainingPlan again = longer;  // the same command line, requeued, changes nothing any more
    take_steps(again, 10);
    again = TrainingPlan::resumed(options, samples(100), 1, stored(again));
    EXPECT_EQ(again.next_step().position, 510.0);
  }
}

TEST(Cases, C035ChangedDataSetAtTheRestart) {
  const PlanOptions options = run_of(10, 1, "3");
  const AttributeTree inside = stored(plan_after(options, 1000, 1, 30));
  for (const std::int64_t changed : {100, 1001}) {
    expect_refusal([&] { TrainingPlan::resumed(options, samples(changed), 1, inside); },
                   {"1000 samples", text(changed, " samples"), "--finetune-from"});
  }
  const AttributeTree at_end = stored(plan_after(options, 1000, 1, 100));
  const TrainingPlan plan = TrainingPlan::resumed(options, samples(100), 1, at_end);
  EXPECT_EQ(plan.steps_left(), 20);
  EXPECT_EQ(change_of(plan, "samples").before, "1000");
  EXPECT_EQ(change_of(plan, "samples").after, "100");
  EXPECT_EQ(plan.next_step().position, 100.0);
  EXPECT_EQ(plan.state().position.per_step(), 10.0);
  for (const std::int64_t id : ids_to_the_end(plan)) EXPECT_LT(id, 100);
}

TEST(Cases, C036EndToEndOracle) {
  PlanOptions options = run_of(4, 2, "2");
  options.shuffle = ShuffleKind::sequential;
  options.schedule.kind = ScheduleKind::cosine;
  options.schedule.learning_rate = 0.1;
  options.schedule.warmup_steps = 2;
  const std::vector<double> gradients{4.5, 12.5, 19.5, 4.5, 12.5, 19.5};
  const std::vector<double> rates{0, .05, .1, .08535533905932738, .05, .014644660940672627};
  for (const int first_ranks : {1, 2}) {
    options.micro_batch_size = 4 / first_ranks;
    for (const int ranks : {1, 2}) {
      for (std::size_t interrupted = 0; interrupted < 7; ++interrupted) {
        TrainingPlan plan = TrainingPlan::fresh(options, samples(22), first_ranks);
        EXPECT_EQ(plan.total_steps(), 6);
        double weight = 0.0;
        for (std::size_t step = 0; step < 6; ++step) {
          if (step == interrupted) plan = TrainingPlan::resumed(options, samples(22), ranks, stored(plan));
          double sum = 0.0;
          for (const std::int64_t id : next_ids(plan)) sum += static_cast<double>(id + 1);
          const StepPlan next = plan.next_step();
          EXPECT_NEAR(next.learning_rate, rates[step], 1e-15);
          EXPECT_NEAR(sum / static_cast<double>(next.num_samples), gradients[step], 1e-12);
          weight -= next.learning_rate * sum / static_cast<double>(next.num_samples);
          take_step(plan);
        }
        EXPECT_NEAR(weight, -3.86966991411009, 1e-12);
        EXPECT_TRUE(TrainingPlan::resumed(options, samples(22), ranks, stored(plan)).finished());
      }
    }
  }
}

TEST(Cases, C051NewBaseRateAtARestart) {
  PlanOptions options = run_of(1, 1, "1");
  const AttributeTree tree = stored(plan_after(options, 100, 1, 50));
  options.schedule.learning_rate = 1e-4;
  expect_refusal([&] { TrainingPlan::resumed(options, samples(100), 1, tree); }, {"0.001", "1e-04"});
  options.schedule_from = ScheduleFrom::checkpoint;
  EXPECT_DOUBLE_EQ(TrainingPlan::resumed(options, samples(100), 1, tree).next_step().learning_rate, 5e-4);
  options.schedule_from = ScheduleFrom::command_line;
  EXPECT_DOUBLE_EQ(TrainingPlan::resumed(options, samples(100), 1, tree).next_step().learning_rate, 5e-5);
}

TEST(Cases, C057TheLastRoundIsNotPadded) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    PlanOptions options = run_of(1, 1, "1");
    options.shuffle = ShuffleKind::sequential;
    const auto ids = ids_to_the_end(TrainingPlan::fresh(options, samples(10), ranks));
    EXPECT_EQ(ids, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})) << ranks;
  }
}

TEST(Cases, C058FewerSamplesThanRanks) {
  for (const auto& [num_samples, ranks] : {std::pair{3, 7}, std::pair{3, 8}, std::pair{1, 4}}) {
    PlanOptions options = run_of(1, 1, "1");
    const TrainingPlan plan = TrainingPlan::fresh(options, samples(num_samples), ranks);
    EXPECT_EQ(plan.total_steps(), 1);
    EXPECT_EQ(ids_to_the_end(plan).size(), static_cast<std::size_t>(num_samples));
    options.drop_last = true;
    expect_refusal([&, n = num_samples, p = ranks] { TrainingPlan::fresh(options, samples(n), p); },
                   {text(num_samples, " samples"), text(ranks, " ranks")});
  }
}

TEST(Cases, C059ANewOrderEveryEpoch) {
  std::set<std::vector<std::int64_t>> orders;
  for (const std::uint64_t seed : {0, 7}) {
    for (const std::int64_t epoch : {0, 1, 2}) {
      auto order = order_of(22, seed, epoch);
      EXPECT_EQ(order, order_of(22, seed, epoch));
      orders.insert(order);
      std::sort(order.begin(), order.end());
      for (std::int64_t id = 0; id < 22; ++id) EXPECT_EQ(order[static_cast<std::size_t>(id)], id);
    }
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST(Cases, C060EvaluationCountsEverySampleOnce) {
  for (const auto& [num_samples, ranks, batch] :
       {std::tuple{21, 2, 1}, std::tuple{5, 2, 1}, std::tuple{25000, 4, 320}}) {
    const BatchPlan plan{num_samples, num_samples, batch, ranks, false, {}};
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const StepShare share = plan.share_at(0, num_samples, rank);
      EXPECT_EQ(share.first_sample, next);
      next += share.num_samples;
    }
    EXPECT_EQ(next, num_samples);
  }
}

}  // namespace
}  // namespace lockstep
