#include "runtime/plan/coverage_proof.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

TEST(Coverage, IsProvedOverAChainOfRunsOnOtherRankCounts) {
  for (const RankChangePolicy policy : {RankChangePolicy::keep_global_batch, RankChangePolicy::keep_rank_batch}) {
    PlanOptions options = run_of(4, 5, "6");
    options.on_rank_change = policy;
    TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 2);
    for (const int ranks : {3, 1, 4}) {
      take_steps(plan, 3);
      plan = TrainingPlan::resumed(options, samples(171), ranks, stored(plan));
    }
    while (!plan.finished()) take_step(plan);
    const CoverageProof proof = verify_coverage(stored(plan));
    EXPECT_TRUE(proof.chain_proved);
    EXPECT_EQ(proof.num_samples, 6 * 171);
    ASSERT_EQ(proof.epochs.size(), 6u);
    for (const EpochCoverage& epoch : proof.epochs) {
      EXPECT_TRUE(epoch.is_over);
      EXPECT_EQ(epoch.num_used, 171);
      EXPECT_TRUE(epoch.left_out.empty());
    }
  }
}

TEST(Coverage, NamesWhatDropLastLeftOut) {
  PlanOptions options = run_of(40, 1, "2");
  options.drop_last = true;
  options.shuffle = ShuffleKind::sequential;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(165), 1);
  while (!plan.finished()) take_step(plan);
  const CoverageProof proof = verify_coverage(stored(plan));
  EXPECT_EQ(proof.num_left_out(), 10);
  EXPECT_EQ(proof.epochs[1].left_out, (std::vector<std::int64_t>{160, 161, 162, 163, 164}));
}

TEST(Coverage, StaysSmallOverManyEpochs) {
  TrainingPlan plan = TrainingPlan::fresh(run_of(8, 1, "500"), samples(20), 1);
  while (!plan.finished()) take_step(plan);
  EXPECT_LE(plan.state().coverage.spans().size(), 2u);
  EXPECT_EQ(plan.state().coverage.segments().size(), 1u);
  EXPECT_EQ(verify_coverage(stored(plan)).num_samples, 10000);
}

TEST(Coverage, IsTheSameWhetherTheRunWasStoppedOrNot) {
  const PlanOptions options = run_of(4, 2, "3");
  TrainingPlan unbroken = TrainingPlan::fresh(options, samples(50), 2);
  TrainingPlan stopped = unbroken;
  int ranks = 1;
  while (!unbroken.finished()) {
    take_step(unbroken);
    stopped = TrainingPlan::resumed(options, samples(50), ++ranks, stored(stopped));
    take_step(stopped);
  }
  EXPECT_EQ(stored(stopped)["coverage"], stored(unbroken)["coverage"]);
}

TEST(Coverage, NoticesSamplesThatWereNotThePlans) {
  TrainingPlan plan = TrainingPlan::fresh(run_of(4, 1, "1"), samples(40), 1);
  take_steps(plan, 4);
  plan.complete_step(true, 1, 12345);  // read something else
  take_steps(plan, 2);
  expect_refusal([&] { verify_coverage(stored(plan)); }, {"hash chain"});
}

TEST(Coverage, SaysThatAnIncompleteChainProvesOnlyTheRanges) {
  TrainingPlan plan = TrainingPlan::fresh(run_of(4, 1, "1"), samples(40), 1);
  take_step(plan);
  plan.complete_step(true);
  const CoverageProof proof = verify_coverage(stored(plan));
  EXPECT_FALSE(proof.chain_proved);
  EXPECT_EQ(proof.num_samples, 8);
}

TEST(Coverage, NoticesChangedFacts) {
  PlanOptions options = run_of(4, 1, "2");
  TrainingPlan plan = TrainingPlan::fresh(options, samples(42), 1);
  take_steps(plan, 14);
  const AttributeTree good = stored(plan);
  EXPECT_TRUE(verify_coverage(good).chain_proved);

  AttributeTree tree = good;
  tree["sampler"]["seed"] = std::int64_t{99};
  expect_refusal([&] { verify_coverage(tree); }, {"hash chain"});
  tree = good;
  tree["coverage"]["ranges"] = std::vector<std::int64_t>{0, 1, 0, 41, 1, 1, 0, 12};
  expect_refusal([&] { verify_coverage(tree); }, {"ranges"});
  tree = good;
  tree["progress"]["sample_in_epoch"] = std::int64_t{8};
  expect_refusal([&] { verify_coverage(tree); }, {"not proved"});
  tree = good;
  tree["coverage"]["plans"] = std::vector<std::int64_t>{0, 0, 0, 8, 42, 4, 1, 0};
  expect_refusal([&] { verify_coverage(tree); }, {"not proved"});
}

TEST(Coverage, OfAStreamHasNothingToProve) {
  PlanOptions options = run_of(4, 1, "1");
  options.num_train_epochs.reset();
  options.max_steps = 3;
  TrainingPlan plan = TrainingPlan::fresh(options, DataShape{}, 1);
  take_steps(plan, 2);
  expect_refusal([&] { verify_coverage(stored(plan)); }, {"stream"});
}

TEST(Coverage, MarksDoNotDependOnTheRanks) {
  const PlanOptions options = run_of(3, 2, "1");
  std::vector<std::uint64_t> chains;
  for (const int ranks : {1, 2, 3, 5}) {
    PlanOptions fixed = options;
    fixed.global_batch_size = 12;
    fixed.gradient_accumulation_steps.reset();
    TrainingPlan plan = TrainingPlan::fresh(fixed, samples(50), ranks);
    while (!plan.finished()) take_step(plan);
    chains.push_back(plan.state().coverage.chain_value());
  }
  for (const std::uint64_t chain : chains) EXPECT_EQ(chain, chains[0]);
}

}  // namespace
}  // namespace lockstep
