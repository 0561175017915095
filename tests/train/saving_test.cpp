// What a store may read of the state, and until when.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/mpi_main.hpp"
#include "tests/train/reading_store.hpp"
#include "tests/train/training_case.hpp"

namespace lockstep::test {
namespace {

/// Makes a checkpoint in two moves, each a step after the one before.
class SlowStore final : public CheckpointStore {
 public:
  std::unique_ptr<CheckpointReader> open_newest() override { return nullptr; }
  void start_save(const Snapshot& /*snapshot*/) override { moves_left_ = 2; }
  bool is_saving() const override { return moves_left_ > 0; }
  bool part_is_durable() override { return is_saving(); }
  void commit_save() override { --moves_left_; }
  bool finish() override {
    moves_left_ = 0;
    return true;
  }

 private:
  int moves_left_ = 0;
};

/// Batch normalisation has buffers in the flat state, and a counter outside of it.
TrainingCase saved_case() {
  TrainingCase what;
  what.model = TrainingCase::cnn();
  what.options.plan.num_train_epochs = "2";
  return what;
}

RunControl saving_every_step() {
  RunControl control;
  control.save_steps = 1;
  return control;
}

TEST(Saving, ReadsTheSameAtTheLastMomentAsAtOnce) {
  const auto communicator = make();
  const TrainingCase what = saved_case();
  TrainingResult unsaved;
  TrainingRun(what, *communicator).advance(unsaved);
  std::map<Reading, ReadingStore> stores;
  for (const Reading reading : {Reading::at_once, Reading::as_late_as_it_may}) {
    ReadingStore& store = stores.emplace(reading, reading).first->second;
    TrainingRun run(what, *communicator);
    EXPECT_EQ(run.trainer().run(saving_every_step(), &store), RunOutcome::finished);
    EXPECT_EQ(weights_digest(run.model()), unsaved.digest);
  }
  const auto& at_once = stores.at(Reading::at_once).read();
  const auto& late = stores.at(Reading::as_late_as_it_may).read();
  EXPECT_EQ(at_once.size(), unsaved.losses.size());
  EXPECT_EQ(late.size(), at_once.size());
  for (const auto& [step, bytes] : at_once) EXPECT_TRUE(late.count(step) && late.at(step) == bytes) << step;
}

/// The counter of the normalisation as a snapshot shows it; nothing on the ranks that do not save it.
std::vector<std::int64_t> counter_in(const Snapshot& snapshot) {
  std::vector<std::int64_t> values;
  for (const TensorPart& part : snapshot.tensors)
    if (part.info.name.ends_with("num_batches_tracked") && part.begin < part.end)
      values.push_back(*reinterpret_cast<const std::int64_t*>(part.data));
  return values;
}

TEST(Saving, OfACounterIsReadHoweverManyStepsLater) {  // as beside a run on a device, whose slices are copies
  const auto communicator = make();
  TrainingRun run(saved_case(), *communicator);
  RunControl one_step;
  one_step.stop_after_steps = 1;
  EXPECT_EQ(run.trainer().run(one_step, nullptr), RunOutcome::paused);
  const Snapshot snapshot = run.trainer().snapshot();
  const std::vector<std::int64_t> before = counter_in(snapshot);
  EXPECT_EQ(before.empty(), communicator->rank() != 0);
  std::vector<Snapshot> later;  // which take what memory has come free
  while (run.trainer().run(one_step, nullptr) == RunOutcome::paused) later.push_back(run.trainer().snapshot());
  EXPECT_EQ(counter_in(snapshot), before);
  EXPECT_TRUE(before.empty() || before < counter_in(later.back()));
}

TEST(Saving, IsTriedAgainAtTheEnd) {
  const auto communicator = make();
  const TrainingCase what = saved_case();
  for (const int num_failures : {0, 1, 2}) {
    ReadingStore store(Reading::as_late_as_it_may);
    store.num_failures = num_failures;
    TrainingRun run(what, *communicator);
    const auto train = [&] { return run.trainer().run({}, &store); };
    if (num_failures < 2) {
      EXPECT_EQ(train(), RunOutcome::finished);
      EXPECT_EQ(store.num_saves, 1 + num_failures);
    } else {
      EXPECT_THROW(train(), Error);
    }
  }
}

TEST(Saving, IsTimedUntilItIsACheckpoint) {
  const auto communicator = make();
  SlowStore store;
  TrainingRun run(saved_case(), *communicator);
  RunControl control;
  control.save_steps = 4;
  std::vector<std::int64_t> told_after;
  control.on_saved = [&](double seconds) {
    EXPECT_GT(seconds, 0.0);
    told_after.push_back(run.trainer().plan().progress().steps_taken);
  };
  EXPECT_EQ(run.trainer().run(control, &store), RunOutcome::finished);
  const std::int64_t last = run.trainer().plan().progress().steps_taken;
  std::vector<std::int64_t> expected;
  for (std::int64_t saved = 4; saved + 2 <= last; saved += 4) expected.push_back(saved + 2);
  ASSERT_FALSE(expected.empty());
  expected.push_back(last);  // the one that the run ends with
  EXPECT_EQ(told_after, expected);
}

TEST(Saving, IsReadBeforeARunThatFailsGivesTheStateUp) {
  const auto communicator = make();
  ReadingStore store(Reading::as_late_as_it_may);
  TrainingRun run(saved_case(), *communicator);
  RunControl control = saving_every_step();
  control.stop_requested = [&] {
    if (run.trainer().plan().progress().steps_taken == 2) throw Error(ErrorKind::failed, "no answer");
    return false;
  };
  EXPECT_THROW(run.trainer().run(control, &store), Error);
  EXPECT_EQ(store.read().size(), 2u);
}

}  // namespace
}  // namespace lockstep::test
