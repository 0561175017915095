// The example of the documentation: 171 samples, micro-batch 4, 2 ranks, 5 accumulation steps, 6 epochs,
// cosine-with-restarts with 3 warm-up steps and 2 cycles.

#include <gtest/gtest.h>

#include <vector>

#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

PlanOptions example_options() {
  PlanOptions options;
  options.global_batch_size = 40;
  options.micro_batch_size = 4;
  options.num_train_epochs = "6";
  options.schedule.kind = ScheduleKind::cosine_with_restarts;
  options.schedule.learning_rate = 1e-4;
  options.schedule.warmup_steps = 3;
  options.schedule.num_cycles = 2.0;
  return options;
}

TEST(PlanExample, MicroBatchesRanksAndAccumulationMakeTheGlobalBatch) {
  PlanOptions options = example_options();
  options.global_batch_size.reset();
  options.gradient_accumulation_steps = 5;
  const TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 2);
  EXPECT_EQ(plan.batch().global_batch_size, 40);
  EXPECT_EQ(plan.batch().steps_per_epoch(), 5);
  EXPECT_EQ(plan.total_steps(), 30);
  EXPECT_EQ(plan.warmup_steps(), 3);
  EXPECT_EQ(plan.batch().accumulation_steps(), 5);
}

TEST(PlanExample, SixEpochsEqualThirtyStepsOnAnyNumberOfRanks) {
  const std::vector<double> reference = rates_to_the_end(TrainingPlan::fresh(example_options(), samples(171), 2));
  ASSERT_EQ(reference.size(), 30u);
  EXPECT_EQ(reference[0], 0.0);
  EXPECT_EQ(reference[3], 1e-4);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    EXPECT_EQ(rates_to_the_end(TrainingPlan::fresh(example_options(), samples(171), ranks)), reference) << ranks;
    PlanOptions in_steps = example_options();
    in_steps.num_train_epochs.reset();
    in_steps.max_steps = 30;
    EXPECT_EQ(rates_to_the_end(TrainingPlan::fresh(in_steps, samples(171), ranks)), reference) << ranks;
  }
}

TEST(PlanExample, ResumesOnThreeRanksUnderBothPolicies) {
  PlanOptions options = example_options();
  options.global_batch_size.reset();
  options.gradient_accumulation_steps = 5;
  TrainingPlan plan = TrainingPlan::fresh(options, samples(171), 2);
  for (int step = 0; step < 12; ++step) plan.complete_step(true);
  EXPECT_EQ(plan.progress().epoch, 2);
  EXPECT_EQ(plan.progress().sample_in_epoch, 80);
  AttributeTree tree;
  plan.store(tree);

  TrainingPlan kept = TrainingPlan::resumed(options, samples(171), 3, tree);
  EXPECT_EQ(kept.batch().global_batch_size, 40);
  EXPECT_EQ(kept.steps_left(), 18);
  for (int position = 12; position < 30; ++position) {
    EXPECT_EQ(kept.next_step().position, position);
    EXPECT_EQ(kept.next_step().learning_rate, plan.next_step().learning_rate);
    kept.complete_step(true);
    plan.complete_step(true);
  }
  EXPECT_TRUE(kept.finished());

  options.on_rank_change = RankChangePolicy::keep_rank_batch;
  TrainingPlan scaled = TrainingPlan::resumed(options, samples(171), 3, tree);
  EXPECT_EQ(scaled.batch().global_batch_size, 60);
  EXPECT_EQ(scaled.steps_left(), 11);
  for (int step = 0; step < 11; ++step) {
    EXPECT_DOUBLE_EQ(scaled.next_step().position, 12.0 + step * 18.0 / 11.0);
    scaled.complete_step(true);
  }
  EXPECT_TRUE(scaled.finished());
  EXPECT_EQ(scaled.progress().consumed_samples, 6 * 171);
  EXPECT_EQ(scaled.state().position.position(scaled.progress()), 30.0);
}

}  // namespace
}  // namespace lockstep
