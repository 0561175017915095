#include <gtest/gtest.h>

#include "runtime/comm/shared_memory_communicator.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/broken_training.hpp"

namespace lockstep::test {
namespace {

std::vector<TrainingCase> cases() {
  // 20 samples in micro-batches of 3 are 7, the last with two samples; 45 samples leave a step of 5.
  TrainingCase mlp{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  TrainingCase cnn{.name = "cnn", .model = TrainingCase::cnn(), .options = {}};
  TrainingCase clipped = mlp;
  clipped.name = "clipped";
  clipped.options.max_grad_norm = 0.05;
  TrainingCase momentum = cnn;
  momentum.name = "sgd";
  momentum.options.optimizer.kind = OptimizerKind::sgd;
  std::vector<TrainingCase> all = {mlp, cnn, clipped, momentum};
  for (TrainingCase single : {mlp, cnn}) {
    // Micro-batches of one sample, and steps that leave a tail of one sample. Batch norm cannot take one sample with
    // one pixel, so the images keep theirs.
    single.name += " of one sample";
    single.micro_batch_size = 1;
    single.global_batch_size = 11;
    single.num_samples = 34;
    all.push_back(single);
  }
  TrainingCase tail = mlp;
  tail.name = "tail of one sample";
  tail.num_samples = 43;
  tail.global_batch_size = 14;
  tail.micro_batch_size = 13;
  all.push_back(tail);
  return all;
}

TEST(SameBits, OnEveryRankCountAndCommunicator) {
  for (const TrainingCase& what : cases()) {
    const TrainingResult expected = unbroken(what);
    for (const CommunicatorKind kind : {CommunicatorKind::automatic, CommunicatorKind::mpi}) {
      const auto communicator = make(kind);
      TrainingRun run(what, *communicator);
      TrainingResult result;
      run.advance(result);
      EXPECT_EQ(result, expected) << what.name << " over " << communicator->name();
    }
  }
}

TEST(SameBits, WhenTheSharedMemoryIsTooSmall) {
  const TrainingCase what{.name = "mlp", .model = TrainingCase::mlp(), .options = {}};
  SharedMemoryCommunicator communicator(
      session(), [](const std::string&) {}, /*max_exchange_bytes=*/4096);
  TrainingRun run(what, communicator);
  TrainingResult result;
  run.advance(result);
  EXPECT_EQ(result, unbroken(what));
}

TEST(SameBits, WhenStoppedAfterAnyStepAndResumedOnOtherRanks) {
  for (const ModelOptions& model : {TrainingCase::mlp(), TrainingCase::cnn()}) {
    const TrainingCase what{.name = model.kind, .model = model, .options = {}};
    const TrainingResult expected = unbroken(what);
    for (std::int64_t stop = 0; stop <= static_cast<std::int64_t>(expected.losses.size()); ++stop) {
      const int resume_ranks = 1 + static_cast<int>(stop) % session().num_ranks();
      const auto result = stopped_and_resumed(what, stop, resume_ranks);
      if (!result) continue;
      EXPECT_EQ(*result, expected) << what.name << " stopped after " << stop << ", resumed on " << resume_ranks;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
