// Random runs against a simulation that deals every sample by hand and knows nothing of the plan's formulas.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "runtime/plan/coverage_proof.hpp"
#include "runtime/plan/exact.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace lockstep {
namespace {

/// The numbers of a random run.
struct Draw {
  std::int64_t num_samples, micro_batch, accumulation;
  int ranks;
  bool drop_last;
  RunEndKind end;
  std::int64_t tenths_of_epochs, train_samples, max_steps;
};

/// A run as somebody would do it with paper and pencil: one sample after the other.
class ByHand {
 public:
  ByHand(const Draw& draw, std::int64_t global_batch) : draw_(draw), global_batch_(global_batch) {
    if (draw.end == RunEndKind::epochs) {
      end_epoch_ = draw.tenths_of_epochs / 10;
      const std::int64_t steps_an_epoch = static_cast<std::int64_t>(steps_in(0, draw.num_samples).size());
      std::int64_t steps = 0;
      while (10 * steps < (draw.tenths_of_epochs % 10) * steps_an_epoch) ++steps;
      for (std::int64_t step = 0; step < steps; ++step) {
        for (std::int64_t i = 0; i < global_batch && end_sample_ < draw.num_samples; ++i) ++end_sample_;
      }
      if (steps == steps_an_epoch) {
        ++end_epoch_;
        end_sample_ = 0;
      }
    } else if (draw.end == RunEndKind::samples) {
      std::int64_t used = 0;
      for (const std::int64_t samples : steps_in(0, draw.num_samples)) used += samples;
      for (std::int64_t i = 0; i < draw.train_samples; ++i) {
        if (++end_sample_ == used) {
          ++end_epoch_;
          end_sample_ = 0;
        }
      }
    }
  }

  void set_global_batch(std::int64_t global_batch) {
    global_batch_ = global_batch;
    skip_tail();
  }

  /// The sizes of all steps that are left.
  std::vector<std::int64_t> steps_left() const {
    if (draw_.end == RunEndKind::steps) {
      std::vector<std::int64_t> steps;
      ByHand copy = *this;
      for (std::int64_t step = taken_; step < draw_.max_steps; ++step) {
        steps.push_back(copy.steps_in(copy.sample_, draw_.num_samples).front());
        copy.advance(steps.back());
      }
      return steps;
    }
    std::vector<std::int64_t> steps;
    std::int64_t sample = sample_;
    for (std::int64_t epoch = epoch_; epoch <= end_epoch_; ++epoch) {
      const std::int64_t until = epoch < end_epoch_ ? draw_.num_samples : end_sample_;
      for (const std::int64_t samples : steps_in(sample, until)) steps.push_back(samples);
      sample = 0;
    }
    return steps;
  }

  void advance(std::int64_t samples) {
    sample_ += samples;
    ++taken_;
    skip_tail();
  }

  std::int64_t epoch() const { return epoch_; }
  std::int64_t sample() const { return sample_; }

 private:
  void skip_tail() {
    if (!steps_in(sample_, draw_.num_samples).empty()) return;
    ++epoch_;
    sample_ = 0;
  }

  /// The sizes of the steps from `sample` up to `until` in one epoch.
  std::vector<std::int64_t> steps_in(std::int64_t sample, std::int64_t until) const {
    std::vector<std::int64_t> steps;
    std::int64_t samples = 0;
    for (; sample < until; ++sample) {
      if (++samples < global_batch_) continue;
      steps.push_back(samples);
      samples = 0;
    }
    if (samples > 0 && !draw_.drop_last) steps.push_back(samples);
    return steps;
  }

  Draw draw_;
  std::int64_t global_batch_;
  std::int64_t end_epoch_ = 0;
  std::int64_t end_sample_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t sample_ = 0;
  std::int64_t taken_ = 0;
};

class Simulation {
 public:
  explicit Simulation(unsigned seed) : random_(seed) {}

  /// One random run with a chain of stops. False when its numbers make no run.
  bool run() {
    const Draw draw = random_draw();
    const PlanOptions options = options_of(draw);
    std::optional<TrainingPlan> fresh;
    const std::int64_t global_batch = draw.micro_batch * draw.ranks * draw.accumulation;
    try {
      fresh = TrainingPlan::fresh(options, samples(draw.num_samples), draw.ranks);
    } catch (const Error&) {
      const bool has_step = !draw.drop_last || global_batch <= draw.num_samples;
      EXPECT_TRUE(!has_step || ByHand(draw, global_batch).steps_left().empty());
      return false;
    }
    TrainingPlan plan = *fresh;
    ByHand by_hand(draw, global_batch);
    EXPECT_EQ(plan.batch().global_batch_size, global_batch);
    EXPECT_EQ(plan.total_steps(), static_cast<std::int64_t>(by_hand.steps_left().size()));
    const double total = static_cast<double>(plan.total_steps());
    used_.clear();
    const bool skips = draw_below(4) == 0;
    while (true) {
      const auto expected = by_hand.steps_left();
      EXPECT_EQ(plan.steps_left(), static_cast<std::int64_t>(expected.size()));
      const std::int64_t stop = draw_below(static_cast<std::int64_t>(expected.size()) + 2);
      const double start = plan.state().position.position(plan.progress());
      const double speed = plan.state().position.per_step();
      std::int64_t applied = 0;
      for (std::int64_t step = 0; step < stop && !plan.finished(); ++step) {
        const StepPlan next = plan.next_step();
        EXPECT_EQ(next.num_samples, expected[static_cast<std::size_t>(step)]);
        EXPECT_EQ(next.epoch, by_hand.epoch());
        EXPECT_EQ(next.first_sample, by_hand.sample());
        EXPECT_NEAR(next.position, start + static_cast<double>(applied) * speed, 1e-9 * (1.0 + total));
        EXPECT_EQ(next.learning_rate, plan.state().base_rate.rate * plan.state().schedule.factor(next.position));
        use(plan, next);
        const bool is_applied = !skips || draw_below(5) != 0;
        take_step(plan, is_applied);
        by_hand.advance(next.num_samples);
        applied += is_applied;
      }
      if (plan.finished()) break;
      plan = resume(options, draw, plan, by_hand);
      if (testing::Test::HasFailure()) return true;
    }
    check_end(draw, plan, total);
    return true;
  }

 private:
  std::int64_t draw_below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }

  Draw random_draw() {
    Draw draw{};
    draw.num_samples = 1 + draw_below(500);
    draw.micro_batch = 1 + draw_below(9);
    draw.ranks = static_cast<int>(1 + draw_below(9));
    draw.accumulation = 1 + draw_below(7);
    draw.drop_last = draw_below(3) == 0;
    draw.end = static_cast<RunEndKind>(draw_below(3));
    draw.tenths_of_epochs = 1 + draw_below(40);
    draw.train_samples = 1 + draw_below(3 * draw.num_samples);
    draw.max_steps = 1 + draw_below(40);
    return draw;
  }

  static PlanOptions options_of(const Draw& draw) {
    PlanOptions options = run_of(draw.micro_batch, draw.accumulation, "1");
    options.num_train_epochs.reset();
    options.drop_last = draw.drop_last;
    options.seed = static_cast<std::uint64_t>(draw.num_samples * 31 + draw.max_steps);
    options.schedule.kind = ScheduleKind::cosine;
    if (draw.end == RunEndKind::epochs) {
      options.num_train_epochs = text(draw.tenths_of_epochs / 10, ".", draw.tenths_of_epochs % 10);
    } else if (draw.end == RunEndKind::samples) {
      options.train_samples = draw.train_samples;
    } else {
      options.max_steps = draw.max_steps;
    }
    return options;
  }

  void use(const TrainingPlan& plan, const StepPlan& step) {
    const auto epoch = static_cast<std::size_t>(step.epoch);
    while (used_.size() <= epoch) used_.emplace_back(static_cast<std::size_t>(plan.batch().num_samples), 0);
    std::int64_t dealt = 0;
    for (const std::int64_t id : next_ids(plan)) {
      ++used_[epoch][static_cast<std::size_t>(id)];
      ++dealt;
    }
    EXPECT_EQ(dealt, step.num_samples);
  }

  TrainingPlan resume(PlanOptions options, const Draw& draw, const TrainingPlan& before, ByHand& by_hand) {
    const int ranks = static_cast<int>(1 + draw_below(9));
    if (draw_below(2) == 0) options.on_rank_change = RankChangePolicy::keep_rank_batch;
    std::optional<TrainingPlan> resumed;
    try {
      resumed = TrainingPlan::resumed(options, samples(draw.num_samples), ranks, stored(before));
    } catch (const Error& error) {
      // Only drop-last with a larger batch leaves no step.
      EXPECT_TRUE(draw.drop_last && options.on_rank_change == RankChangePolicy::keep_rank_batch) << error.what();
      options.on_rank_change = RankChangePolicy::keep_global_batch;
      resumed = TrainingPlan::resumed(options, samples(draw.num_samples), ranks, stored(before));
    }
    TrainingPlan& after = *resumed;
    EXPECT_NEAR(after.state().position.position(after.progress()),
                before.state().position.position(before.progress()),
                1e-12 * static_cast<double>(1 + before.state().schedule.total_steps()));
    if (options.on_rank_change == RankChangePolicy::keep_global_batch) {
      EXPECT_EQ(after.batch().global_batch_size, before.batch().global_batch_size);
      EXPECT_EQ(after.next_step().position, before.next_step().position);
      EXPECT_EQ(next_ids(after), next_ids(before));
    }
    by_hand.set_global_batch(after.batch().global_batch_size);
    return after;
  }

  void check_end(const Draw& draw, const TrainingPlan& plan, double total) {
    const PlanState& state = plan.state();
    const double end = state.position.position(plan.progress()) + state.position.lag(plan.progress());
    EXPECT_NEAR(end, total, 1e-9 * total);
    if (plan.progress().steps_skipped == 0) {
      EXPECT_NEAR(learning_rate(state), 0.0, 1e-12);
    }
    for (std::size_t epoch = 0; epoch < used_.size(); ++epoch) {
      const bool is_over = static_cast<std::int64_t>(epoch) < plan.progress().epoch;
      for (const int count : used_[epoch]) {
        EXPECT_LE(count, 1);
        EXPECT_TRUE(count == 1 || draw.drop_last || !is_over);
      }
    }
    const CoverageProof proof = verify_coverage(stored(plan));
    EXPECT_TRUE(proof.chain_proved);
    EXPECT_EQ(proof.num_steps, plan.progress().steps_taken);
    EXPECT_TRUE(draw.drop_last || proof.num_left_out() == 0);
  }

  std::mt19937 random_;
  std::vector<std::vector<int>> used_;
};

TEST(Simulation, TenThousandRandomRunsAndTheirResumesAreAsDealtByHand) {
  Simulation simulation(20240607);
  for (int runs = 0; runs < 10000 && !HasFailure();) runs += simulation.run();
}

}  // namespace
}  // namespace lockstep
