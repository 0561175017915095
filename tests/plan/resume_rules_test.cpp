#include "runtime/plan/resume_rules.hpp"

#include <limits>

#include "runtime/plan/coverage_proof.hpp"
#include "runtime/plan/exact.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

/// Two ranks, G = 40, 5 steps an epoch, 30 steps; stopped after step 12: epoch 2, sample 80.
class Resume : public testing::Test {
 protected:
  Resume() {
    options_ = run_of(4, 5, "6");
    options_.schedule.warmup_ratio = "0.1";
    TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
    take_steps(plan, 12);
    stored_ = stored(plan);
  }

  TrainingPlan resume(int ranks) const { return TrainingPlan::resumed(options_, samples(171), ranks, stored_); }
  void expect_refused(const std::vector<std::string>& parts) const {
    expect_refusal([this] { resume(2); }, parts);
  }

  PlanOptions options_;
  AttributeTree stored_;
};

TEST_F(Resume, ChangesNothingUnderTheSameCommandLineAndRanks) {
  const TrainingPlan plan = resume(2);
  for (const PlanChange& change : plan.changes()) EXPECT_EQ(change.before, change.after) << change.name;
  EXPECT_EQ(stored(plan), stored_);
}

TEST_F(Resume, RefusesAnotherSeed) {
  options_.seed = 8;
  expect_refused({"--seed", "is 8", "made with 0", "--finetune-from"});
}

TEST_F(Resume, RefusesAnotherKindOfShuffle) {
  options_.shuffle = ShuffleKind::sequential;
  expect_refused({"sequential", "permutation"});
}

TEST_F(Resume, RefusesAnotherDropLast) {
  options_.drop_last = true;
  expect_refused({"--drop-last is on", "made with off"});
}

TEST_F(Resume, RefusesOtherDataInTheMiddleOfAnEpoch) {
  expect_refusal([this] { TrainingPlan::resumed(options_, samples(172), 2, stored_); },
                 {"171 samples", "172 samples", "epoch 2", "after 80"});
}

TEST_F(Resume, RefusesAnotherScheduleWithAllValues) {
  options_.schedule.kind = ScheduleKind::cosine;
  options_.schedule.learning_rate = 2e-3;
  options_.schedule.warmup_ratio.reset();
  options_.schedule.warmup_steps = 4;
  options_.num_train_epochs = "7";
  expect_refused({"linear", "cosine", "0.001", "0.002", "warmup_ratio: 0.1", "warmup_steps: not given", ", 4 on",
                  "--num-train-epochs 6", "--num-train-epochs 7", "--schedule-from"});
}

TEST_F(Resume, TakesTheSameDecimalSpelledInAnotherWay) {
  options_.num_train_epochs = "6.0";
  options_.schedule.warmup_ratio = ".10";
  EXPECT_EQ(stored(resume(2)), stored_);
}

TEST_F(Resume, RefusesAnotherKindOfEnd) {
  options_.num_train_epochs.reset();
  options_.max_steps = 30;
  expect_refused({"--num-train-epochs 6", "--max-steps 30"});
}

TEST_F(Resume, RefusesAnEndThatIsAlreadyPassed) {
  options_.num_train_epochs = "2";
  options_.schedule_from = ScheduleFrom::command_line;
  expect_refused({"--num-train-epochs 2", "epoch 2, sample 80"});
  options_.num_train_epochs = "3";
  EXPECT_EQ(resume(2).steps_left(), 3);
}

TEST_F(Resume, EntersANewScheduleAtTheSameFractionOfSamples) {
  options_.num_train_epochs = "12";
  options_.schedule_from = ScheduleFrom::command_line;
  TrainingPlan plan = resume(2);
  EXPECT_EQ(plan.total_steps(), 60);
  EXPECT_EQ(plan.warmup_steps(), 6);
  const double fraction = (2.0 * 171 + 80) / (12.0 * 171);
  EXPECT_DOUBLE_EQ(plan.next_step().position, 60.0 * fraction);
  EXPECT_EQ(change_of(plan, "position").before, "12");
  EXPECT_EQ(change_of(plan, "end").after, "--num-train-epochs 12");
  take_steps(plan, 48);
  EXPECT_TRUE(plan.finished());
  EXPECT_NEAR(plan.state().position.position(plan.progress()), 60.0, 1e-9);
}

TEST_F(Resume, KeepsTheGlobalBatchThatIsOnlyDerived) {
  options_.gradient_accumulation_steps = 3;
  const TrainingPlan plan = resume(3);
  EXPECT_EQ(plan.batch().global_batch_size, 40);
  EXPECT_EQ(plan.steps_left(), 18);
  EXPECT_EQ(plan.next_step().position, 12.0);
  EXPECT_EQ(change_of(plan, "ranks").before, "2");
  EXPECT_EQ(change_of(plan, "ranks").after, "3");
  EXPECT_EQ(change_of(plan, "accumulation_steps").before, "5");
  EXPECT_EQ(change_of(plan, "accumulation_steps").after, "4");
}

TEST_F(Resume, TakesAnotherMicroBatch) {
  options_.micro_batch_size = 10;
  const TrainingPlan plan = resume(2);
  EXPECT_EQ(plan.batch().global_batch_size, 40);
  EXPECT_EQ(plan.next_step().num_micro_batches, 4);
  EXPECT_EQ(change_of(plan, "micro_batch_size").before, "4");
  EXPECT_EQ(change_of(plan, "micro_batch_size").after, "10");
  EXPECT_EQ(change_of(plan, "next_learning_rate").before, change_of(plan, "next_learning_rate").after);
}

TEST_F(Resume, AnExplicitOtherGlobalBatchIsAChangeOfPlan) {
  options_.global_batch_size = 60;
  options_.gradient_accumulation_steps.reset();
  TrainingPlan plan = resume(2);
  EXPECT_EQ(plan.steps_left(), 11);
  take_steps(plan, 3);
  EXPECT_DOUBLE_EQ(plan.next_step().position, 12.0 + 3 * 18.0 / 11.0);
  // The same command line again is no further change.
  const TrainingPlan again = TrainingPlan::resumed(options_, samples(171), 2, stored(plan));
  EXPECT_EQ(again.next_step().position, plan.next_step().position);
  EXPECT_EQ(stored(again), stored(plan));
}

TEST_F(Resume, LeavesRunsGivenInStepsAlone) {
  options_.num_train_epochs.reset();
  options_.max_steps = 30;
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 12);
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan resumed = TrainingPlan::resumed(options_, samples(171), 3, stored(plan));
  EXPECT_EQ(resumed.batch().global_batch_size, 60);
  EXPECT_EQ(resumed.steps_left(), 18);
  EXPECT_EQ(rates_to_the_end(resumed), rates_to_the_end(plan));
}

TEST_F(Resume, RefusesASwitchThatLeavesNoStep) {
  options_ = run_of(4, 5, "1");
  options_.drop_last = true;
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 3);
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  expect_refusal([&] { TrainingPlan::resumed(options_, samples(171), 3, stored(plan)); },
                 {"60 on 3 ranks", "1 steps (40 samples)", "keep-global-batch"});
}

TEST_F(Resume, SaysWhatHappensToTheGlobalBatch) {
  EXPECT_TRUE(warns(resume(3), "is 40 as the run defines it, and not --micro-batch-size 4 x 3 ranks x"));
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  EXPECT_TRUE(warns(resume(3), "from 40 to 60, the base learning rate from 0.001 to 0.001 (--lr-scaling none)"));
}

TEST_F(Resume, SaysWhatDropLastPassesOverAtASwitch) {
  options_.drop_last = true;
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 3);
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  const TrainingPlan resumed = TrainingPlan::resumed(options_, samples(171), 3, stored(plan));
  EXPECT_EQ(resumed.progress().epoch, 1);
  EXPECT_TRUE(warns(resumed, "passes over the last 51 samples of epoch 0"));
  EXPECT_EQ(resumed.steps_left(), 5 * 2);
}

TEST_F(Resume, AFinishedRunStaysFinishedOnRanksThatCouldNotRunIt) {
  options_ = run_of(40, 1, "1");
  options_.drop_last = true;
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 2);
  ASSERT_TRUE(plan.finished());
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  EXPECT_TRUE(TrainingPlan::resumed(options_, samples(171), 9, stored(plan)).finished());
}

TEST_F(Resume, ScalesTheBaseRateOnlyWhenAskedAndSaysSo) {
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  const PlanChange kept = change_of(resume(4), "base_learning_rate");
  EXPECT_EQ(kept.before, "0.001");
  EXPECT_EQ(kept.after, "0.001");
  options_.lr_scaling = LrScaling::linear;
  EXPECT_EQ(change_of(resume(4), "base_learning_rate").after, "0.002");
  options_.lr_scaling = LrScaling::sqrt;
  EXPECT_EQ(resume(8).state().base_rate.rate, 2e-3);
}

TEST_F(Resume, AChainOfScaledRatesDoesNotDrift) {
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  options_.lr_scaling = LrScaling::linear;
  TrainingPlan plan = resume(3);
  for (const int ranks : {7, 1, 5, 3, 2}) plan = TrainingPlan::resumed(options_, samples(171), ranks, stored(plan));
  EXPECT_EQ(plan.state().base_rate.rate, 1e-3);
  EXPECT_EQ(plan.batch().global_batch_size, 40);
}

TEST_F(Resume, ARankBatchThatDoesNotDivideDoesNotDriftEither) {
  options_ = run_of(4, 1, "6");
  options_.gradient_accumulation_steps.reset();
  options_.global_batch_size = 10;
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 4);
  plan = TrainingPlan::resumed(options_, samples(171), 3, stored(plan));
  EXPECT_EQ(plan.batch().global_batch_size, 8);
  plan = TrainingPlan::resumed(options_, samples(171), 4, stored(plan));
  EXPECT_EQ(plan.batch().global_batch_size, 10);
}

TEST_F(Resume, MixedPoliciesFollowTheLastRankBatch) {
  TrainingPlan plan = resume(3);  // keeps G = 40 on three ranks
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  plan = TrainingPlan::resumed(options_, samples(171), 6, stored(plan));
  EXPECT_EQ(plan.batch().global_batch_size, 80);
}

TEST_F(Resume, MoreDataAtAnEpochsEndIsAChangeOfPlan) {
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 10);
  TrainingPlan grown = TrainingPlan::resumed(options_, samples(400), 2, stored(plan));
  EXPECT_EQ(grown.steps_left(), 40);
  EXPECT_EQ(grown.next_step().position, 10.0);
  EXPECT_EQ(grown.state().position.per_step(), 0.5);
  while (!grown.finished()) take_step(grown);
  EXPECT_EQ(grown.progress().consumed_samples, 2 * 171 + 4 * 400);
  EXPECT_TRUE(verify_coverage(stored(grown)).chain_proved);
}

TEST_F(Resume, SkippedStepsLagAndTheLagSurvivesASwitch) {
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  for (int step = 0; step < 10; ++step) plan.complete_step(step % 5 != 1);
  EXPECT_EQ(plan.next_step().position, 8.0);
  options_.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan resumed = TrainingPlan::resumed(options_, samples(171), 4, stored(plan));  // G = 80: 12 steps left
  EXPECT_EQ(resumed.next_step().position, 8.0);
  EXPECT_DOUBLE_EQ(resumed.state().position.per_step(), (30.0 - 8.0 - 2.0) / 12.0);
  while (!resumed.finished()) resumed.complete_step(true);
  EXPECT_DOUBLE_EQ(resumed.state().position.position(resumed.progress()), 28.0);
}

TEST_F(Resume, NoticesAStoredRateThatItWouldNotCompute) {
  stored_["schedule"]["next_learning_rate"] = 1.25e-3;
  expect_refused({"0.00125", shortest(learning_rate(plan_state_from(stored_, nullptr)))});
}

TEST_F(Resume, NoticesStoredSamplesThatItWouldNotRead) {
  auto ids = attribute<std::vector<std::int64_t>>(stored_, "sampler", "next_sample_ids");
  ids[0] = 12345;
  stored_["sampler"]["next_sample_ids"] = ids;
  expect_refused({"12345"});
}

TEST_F(Resume, NoticesMissingAndContradictingFacts) {
  AttributeTree damaged = stored_;
  damaged["plan"].erase("global_batch_size");
  expect_refusal([&] { TrainingPlan::resumed(options_, samples(171), 2, damaged); }, {"plan/global_batch_size"});
  damaged = stored_;
  damaged["progress"]["steps_applied"] = std::int64_t{11};
  expect_refusal([&] { TrainingPlan::resumed(options_, samples(171), 2, damaged); }, {"applied 11"});
}

TEST_F(Resume, RestoresAScheduleThatFollowsAMetric) {
  options_.schedule.kind = ScheduleKind::reduce_on_plateau;
  options_.schedule.plateau_patience = 1;
  options_.schedule.warmup_ratio.reset();
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  for (int epoch = 0; epoch < 2; ++epoch) {
    take_steps(plan, 5);
    plan.observe_metric(1.0);
  }
  EXPECT_EQ(plan.next_step().learning_rate, 1e-3);
  TrainingPlan resumed = TrainingPlan::resumed(options_, samples(171), 3, stored(plan));
  resumed.observe_metric(1.0);
  EXPECT_DOUBLE_EQ(resumed.next_step().learning_rate, 1e-4);
}

TEST_F(Resume, NeedsTheFunctionOfACustomSchedule) {
  options_.schedule.kind = ScheduleKind::custom;
  options_.schedule.warmup_ratio.reset();
  expect_refusal([this] { TrainingPlan::fresh(options_, samples(171), 2); }, {"custom"});
  options_.schedule.custom = [](double position, double total) { return 1.0 - 0.5 * position / total; };
  TrainingPlan plan = TrainingPlan::fresh(options_, samples(171), 2);
  take_steps(plan, 15);
  EXPECT_DOUBLE_EQ(plan.next_step().learning_rate, 0.75e-3);
  EXPECT_DOUBLE_EQ(TrainingPlan::resumed(options_, samples(171), 3, stored(plan)).next_step().learning_rate, 0.75e-3);
  options_.schedule.custom = [](double, double) { return 1.0; };
  expect_refusal([&] { TrainingPlan::resumed(options_, samples(171), 2, stored(plan)); }, {"custom schedule"});
  options_.schedule_from = ScheduleFrom::command_line;
  EXPECT_DOUBLE_EQ(TrainingPlan::resumed(options_, samples(171), 2, stored(plan)).next_step().learning_rate, 1e-3);
  options_.schedule.custom = nullptr;
  options_.schedule.kind = ScheduleKind::linear;
  EXPECT_DOUBLE_EQ(TrainingPlan::resumed(options_, samples(171), 2, stored(plan)).next_step().learning_rate, 0.5e-3);
}

TEST_F(Resume, ShowsAStoredPlanAsItIs) {
  const TrainingPlan plan = TrainingPlan::as_stored(stored_);
  EXPECT_EQ(plan.batch().num_ranks, 2);
  EXPECT_EQ(plan.total_steps(), 30);
  EXPECT_EQ(plan.next_step().position, 12.0);
}

TEST_F(Resume, DataThatShardItselfStaysWithItsRanksInsideAnEpoch) {
  PlanOptions options = run_of(16, 1, "3");
  const DataShape four{{}, {100, 96, 104, 90}};
  const DataShape three{{}, {130, 130, 130}};
  TrainingPlan plan = TrainingPlan::fresh(options, four, 4);
  take_steps(plan, 3);
  EXPECT_EQ(TrainingPlan::resumed(options, four, 4, stored(plan)).steps_left(), 18);
  expect_refusal([&] { TrainingPlan::resumed(options, three, 3, stored(plan)); }, {"over 4 ranks", "over 3 ranks"});
  PlanOptions larger = options;
  larger.global_batch_size = 128;
  expect_refusal([&] { TrainingPlan::resumed(larger, four, 4, stored(plan)); }, {"from 64 to 128"});
  take_steps(plan, 4);
  expect_refusal([&] { TrainingPlan::resumed(options, three, 3, stored(plan)); }, {"64", "3 ranks"});
  options.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan resumed = TrainingPlan::resumed(options, three, 3, stored(plan));
  while (!resumed.finished()) take_step(resumed);
  const CoverageProof proof = verify_coverage(stored(resumed));
  EXPECT_TRUE(proof.chain_proved);
  EXPECT_EQ(proof.num_samples, 3 * 390);
}

TEST_F(Resume, RefusesASeedThatCannotBeStored) {
  options_.seed = std::numeric_limits<std::uint64_t>::max();
  expect_refusal([this] { TrainingPlan::fresh(options_, samples(171), 2); }, {"--seed", "2^63"});
}

}  // namespace
}  // namespace lockstep
