// Where transfers overlap, run() launches a step before the host has seen the numbers of the one before. Nothing of
// that may be seen in what a run tells, saves, or ends with.

#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/device_communicator.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/early_start.hpp"
#include "tests/train/error_words.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/training_case.hpp"

namespace lockstep::test {
namespace {

/// All that a run tells of its steps, and the weights it ends with.
struct Course {
  std::vector<std::string> steps;
  std::vector<std::string> messages;
  std::vector<double> evaluations;
  std::string digest;

  friend bool operator==(const Course&, const Course&) = default;
};

std::ostream& operator<<(std::ostream& stream, const Course& course) {
  for (const std::string& line : course.steps) stream << "\n  " << line;
  for (const std::string& line : course.messages) stream << "\n  " << line;
  return stream << "\n  " << course.evaluations.size() << " evaluations, " << course.digest;
}

std::string text_of(const StepReport& report) {
  return text("step ", report.plan.step, " epoch ", report.plan.epoch, " rate ", report.plan.learning_rate, " loss ",
              report.loss, " norm ", report.gradient_norm, " scale ", report.loss_scale, " attempts ",
              report.attempts, report.applied ? "" : " dropped");
}

RunControl telling(Course& course, RunControl control = {}) {
  control.events.on_step = [&course](const StepReport& report) { course.steps.push_back(text_of(report)); };
  control.events.on_message = [&course](const std::string& message) { course.messages.push_back(message); };
  control.events.on_evaluation = [&course](const auto& metrics) { course.evaluations.push_back(metrics.at("loss")); };
  return control;
}

Course course_of(const TrainingCase& what, Communicator& communicator, const RunControl& control = {},
                 CheckpointStore* store = nullptr) {
  Course course;
  TrainingRun run(what, communicator);
  EXPECT_EQ(run.trainer().run(telling(course, control), store), RunOutcome::finished);
  course.digest = weights_digest(run.model());
  return course;
}

Course course_on_host(const TrainingCase& what, const RunControl& control = {}) {
  const auto host = make(CommunicatorKind::automatic);
  return course_of(what, *host, control);
}

TrainingCase fp16_case(std::set<std::int64_t> overflows) {
  TrainingCase what{.name = "fp16", .model = TrainingCase::cnn(), .options = {}};
  what.options.precision = Precision::fp16;
  what.options.loss_scaler.init_scale = 1024;
  what.options.loss_scaler.growth_interval = 2;
  what.options.overflow_drill_steps = std::move(overflows);
  return what;
}

/// Trainings of five steps and more in which steps fail, at both ends and one after the other.
std::vector<TrainingCase> cases() {
  TrainingCase plain{.name = "plain", .model = TrainingCase::cnn(), .options = {}};
  TrainingCase clipped = plain;
  clipped.name = "clipped";
  clipped.options.max_grad_norm = 0.3;
  TrainingCase momentum = clipped;
  momentum.name = "sgd";
  momentum.options.optimizer.kind = OptimizerKind::sgd;
  TrainingCase retried = fp16_case({0, 2, 3, 5});
  TrainingCase retried_clipped = fp16_case({1, 4});
  retried_clipped.options.max_grad_norm = 0.3;
  TrainingCase dropped = fp16_case({0, 2, 3, 5});
  dropped.options.on_overflow = OverflowPolicy::skip;
  TrainingCase diverged = momentum;
  diverged.name = "steps that are not finite";
  diverged.options.on_nonfinite = NonfinitePolicy::skip;
  diverged.options.overflow_drill_steps = {1, 2, 5};
  return {plain, clipped, momentum, retried, retried_clipped, dropped, diverged};
}

TEST(RunAhead, TellsAndTrainsTheSameAsStepByStep) {
  const auto below = make(CommunicatorKind::automatic);
  for (const TrainingCase& what : cases()) {
    EarlyStart early(*below);
    EXPECT_EQ(course_of(what, early), course_on_host(what)) << what.name;
  }
}

TEST(RunAhead, OverADeviceInExactOrderToo) {
  for (const TrainingCase& what : cases()) {
    DeviceCommunicator device(session(), std::make_unique<FakeDevice>(session(), Pace::at_once),
                              DeviceSettings{ReductionOrder::exact});
    EarlyStart early(device);
    EXPECT_EQ(course_of(what, early), course_on_host(what)) << what.name;
  }
}

/// The micro-batches that this rank has computed when a step is told, in units of a step.
std::vector<double> steps_computed_when_told(Communicator& communicator, const RunControl& control) {
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  const RandomDataset data(what.num_samples, what.model.input_shape, what.model.num_outputs);
  const auto model = make_model(what.model, 11);
  const LossFunction loss = make_loss("cross-entropy", *model);
  std::int64_t num_computed = 0;
  Trainer trainer(
      *model,
      [&](const Batch& batch) {
        ++num_computed;
        return loss(batch);
      },
      data, what.resolved(), communicator);
  std::vector<double> computed;
  RunControl watching = control;
  watching.events.on_step = [&](const StepReport& report) {
    std::int64_t up_to_it = 0;
    std::int64_t of_next = 0;
    for (std::int64_t step = 0; step <= report.plan.step + 1; ++step) {
      const bool is_tail = step % 3 == 2;
      const StepShare share = trainer.plan().batch().share_at(step % 3 * 20, is_tail ? 5 : 20, communicator.rank());
      (step <= report.plan.step ? up_to_it : of_next) += share.micro_batches.size();
    }
    computed.push_back(num_computed == up_to_it ? 0.0 : num_computed == up_to_it + of_next ? 1.0 : -1.0);
  };
  trainer.run(watching, nullptr);
  return computed;
}

TEST(RunAhead, LaunchesTheNextStepUnlessSomethingWantsTheStateBetween) {
  const auto below = make(CommunicatorKind::automatic);
  if (below->num_ranks() > 2) GTEST_SKIP() << "a rank without a micro-batch in the last step of an epoch cannot tell";
  EarlyStart early(*below);
  EXPECT_EQ(steps_computed_when_told(*below, {}), std::vector<double>(6, 0.0));
  EXPECT_EQ(steps_computed_when_told(early, {}), (std::vector<double>{1, 1, 1, 1, 1, 0}));
  RunControl saving;
  saving.save_steps = 2;
  EXPECT_EQ(steps_computed_when_told(early, saving), (std::vector<double>{1, 0, 1, 0, 1, 0}));
  RunControl pausing;
  pausing.stop_after_steps = 3;
  EXPECT_EQ(steps_computed_when_told(early, pausing), (std::vector<double>{1, 1, 0}));
}

/// Data of which one sample cannot be read.
class DamagedDataset final : public Dataset {
 public:
  explicit DamagedDataset(const Dataset& whole) : whole_(whole) {}
  std::int64_t num_samples() const override { return whole_.num_samples(); }
  Batch get(std::span<const std::int64_t> ids) const override {
    if (std::find(ids.begin(), ids.end(), damaged) != ids.end())
      throw Error(ErrorKind::do_not_requeue, text("sample ", damaged, " cannot be read"));
    return whole_.get(ids);
  }
  std::int64_t damaged = -1;

 private:
  const Dataset& whole_;
};

TEST(RunAhead, AFailureOfTheNextStepComesAfterThisOneWasTold) {
  const auto below = make(CommunicatorKind::automatic);
  for (const std::set<std::int64_t>& overflows : {std::set<std::int64_t>{}, {1}}) {
    EarlyStart early(*below);
    const TrainingCase what = fp16_case(overflows);
    const RandomDataset whole(what.num_samples, what.model.input_shape, what.model.num_outputs);
    DamagedDataset data(whole);
    const auto model = make_model(what.model, 11);
    Trainer trainer(*model, make_loss("cross-entropy", *model), data, what.resolved(), early);
    std::array<std::int64_t, 1> first_of_step_2 = {};
    trainer.plan().sample_ids(/*epoch=*/0, 40, first_of_step_2);
    data.damaged = first_of_step_2.front();
    Course course;
    expect_words(error_of([&] { trainer.run(telling(course), nullptr); }), {"cannot be read"});
    EXPECT_EQ(course.steps.size(), 2u) << course;
    EXPECT_EQ(trainer.plan().progress().steps_taken, 2);
  }
}

TEST(RunAhead, ARankThatHangsInItsLossIsNamedByTheOthers) {
  const int num_ranks = session().num_ranks();
  if (num_ranks == 1) GTEST_SKIP() << "one rank waits for no other";
  DeviceCommunicator device(session(), std::make_unique<FakeDevice>(session(), Pace::transfers_first),
                            DeviceSettings{ReductionOrder::exact, /*timeout_seconds=*/60.0},
                            hurried_clock(std::make_shared<bool>(true)));
  EarlyStart early(device);
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  const RandomDataset data(what.num_samples, what.model.input_shape, what.model.num_outputs);
  const auto model = make_model(what.model, 11);
  const LossFunction loss = make_loss("cross-entropy", *model);
  const auto hang = [] { MPI_Barrier(session().comm()); };  // until the others have given up
  const bool hangs = session().rank() == num_ranks - 1;
  bool has_hung = false;
  Trainer trainer(
      *model,
      [&](const Batch& batch) {
        if (hangs && !std::exchange(has_hung, true)) hang();
        return loss(batch);
      },
      data, what.resolved(), early);
  const std::string message = error_of([&] { trainer.run({}, nullptr); });
  if (hangs) {
    expect_words(message, {"another rank has given up waiting"});
  } else {
    expect_words(message, {text("rank ", num_ranks - 1, " did not come to operation"), "does not answer"});
    hang();
  }
}

TEST(RunAhead, AnEvaluationAtTheEndOfAnEpochSeesTheWeightsOfThen) {
  const TrainingCase what{.name = "cnn", .model = TrainingCase::cnn(), .options = {}};
  const RandomDataset held_out(11, what.model.input_shape, what.model.num_outputs);
  RunControl control;
  control.evaluation_data = &held_out;
  control.evaluation_steps = 2;
  const auto below = make(CommunicatorKind::automatic);
  EarlyStart early(*below);
  const Course course = course_of(what, early, control);
  EXPECT_EQ(course, course_on_host(what, control));
  EXPECT_EQ(course.evaluations.size(), 4u);
}

/// A snapshot's bytes and progress, of a step that a callback looks at.
std::string snapshot_text(Trainer& trainer, Communicator& communicator) {
  const Snapshot snapshot = trainer.snapshot();
  const MemoryCheckpoint checkpoint(snapshot, communicator);
  std::string all = text("step ", snapshot.step, ": ");
  for (const TensorInfo& info : checkpoint.tensors())
    for (const std::byte byte : checkpoint.bytes(info.section, info.name)) all += static_cast<char>(byte);
  return all;
}

TEST(RunAhead, WhoLooksAtTheStateFromACallbackFindsAWholeStep) {
  const TrainingCase what = fp16_case({1, 2});
  std::map<std::string, std::string> by_step;  // how each step's snapshot begins -> all of it
  const auto host = make(CommunicatorKind::automatic);
  Course expected;
  {
    TrainingRun run(what, *host);
    RunControl control = telling(expected);
    while (!run.trainer().plan().finished()) {
      control.events.on_step(run.trainer().take_step({}, control.events));
      const std::string seen = snapshot_text(run.trainer(), *host);
      by_step[seen.substr(0, seen.find(':'))] = seen;
    }
    expected.digest = weights_digest(run.model());
  }
  EarlyStart early(*host);
  Course course;
  TrainingRun run(what, early);
  RunControl control = telling(course);
  const auto tell = control.events.on_step;
  control.events.on_step = [&](const StepReport& report) {
    tell(report);
    const std::string seen = snapshot_text(run.trainer(), early);
    EXPECT_TRUE(by_step.at(seen.substr(0, seen.find(':'))) == seen) << "after step " << report.plan.step;
  };
  EXPECT_EQ(run.trainer().run(control, nullptr), RunOutcome::finished);
  course.digest = weights_digest(run.model());
  EXPECT_EQ(course, expected);
}

}  // namespace
}  // namespace lockstep::test
