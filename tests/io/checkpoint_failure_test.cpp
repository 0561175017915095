// A save that fails on any rank is known to all: the older checkpoint stays, nothing half-written does.
#include <gtest/gtest.h>

#include "tests/io/checkpoint_fixture.hpp"

namespace lockstep {
namespace {

using test::MadeState;

class SaveFailure : public test::CheckpointTest {
 protected:
  SaveFailure() { place_ = test::Place::memory; }

  CheckpointOptions failing_at(const std::string& stage, int rank) {
    CheckpointOptions out = options();
    out.inject = SaveFault::parse("fail@save:" + stage + ",step=20,rank=" + std::to_string(rank));
    return out;
  }
  int last_rank() const { return communicator_->num_ranks() - 1; }

  void save(CheckpointDirectory& directory, std::int64_t step) {
    MadeState state = test::small_state(static_cast<std::uint64_t>(step));
    directory.start_save(snapshot_of(state, step));
    directory.wait_until_copied();  // ends, whatever failed
    directory.finish();
  }
};

TEST_F(SaveFailure, IsThrownOnAllRanks) {
  for (const std::string& stage : SaveFault::stage_names()) {
    if (stage == "renamed") continue;  // by then the checkpoint exists
    for (const SaveTiming timing : {SaveTiming::synchronous, SaveTiming::asynchronous}) {
      const int rank = timing == SaveTiming::synchronous ? last_rank() : 0;
      SCOPED_TRACE(stage + " on rank " + std::to_string(rank));
      on_first_rank([&] { std::filesystem::remove_all(run_folder()); });
      CheckpointOptions failing = failing_at(stage, rank);
      failing.timing = timing;
      {
        CheckpointDirectory directory(*communicator_, failing);
        save(directory, 10);
        std::string told;
        try {
          save(directory, 20);
        } catch (const Error& error) {
          told = error.what();
        }
        EXPECT_NE(told.find("step 20 could not be saved"), std::string::npos) << told;
        EXPECT_NE(told.find("'" + stage + "'"), std::string::npos) << told;
        on_first_rank([&] {
          EXPECT_EQ(names_in_run_folder(), (std::vector<std::string>{"latest", "lockstep.lock", "step-00000010.h5"}));
        });
      }
      EXPECT_EQ(newest_step(), 10);
    }
  }
}

TEST_F(SaveFailure, CostsOneCheckpointWhenTheRunMayGoOn) {
  for (const SaveTiming timing : {SaveTiming::synchronous, SaveTiming::asynchronous}) {
    on_first_rank([&] { std::filesystem::remove_all(run_folder()); });
    CheckpointOptions failing = failing_at("written", last_rank());
    failing.timing = timing;
    failing.on_save_failure = OnSaveFailure::keep_going;
    {
      CheckpointDirectory directory(*communicator_, failing);
      messages_.clear();
      for (const std::int64_t step : {10, 20, 30}) save(directory, step);
      on_first_rank([&] {
        EXPECT_NE(messages_.find("WARNING: the checkpoint of step 20"), std::string::npos) << messages_;
        EXPECT_EQ(names_in_run_folder(),
                  (std::vector<std::string>{"latest", "lockstep.lock", "step-00000010.h5", "step-00000030.h5"}));
      });
    }
    EXPECT_EQ(newest_step(), 30);
  }
}

TEST_F(SaveFailure, OfAnAsynchronousSaveIsToldByTheNextOne) {
  CheckpointOptions failing = failing_at("written", 0);
  failing.timing = SaveTiming::asynchronous;
  CheckpointDirectory directory(*communicator_, failing);
  MadeState state = test::small_state(20);
  directory.start_save(snapshot_of(state, 20));
  EXPECT_THROW(directory.start_save(snapshot_of(state, 30)), Error);
}

TEST_F(SaveFailure, IsRefusedAheadForOptionsThatMakeNoSense) {
  CheckpointOptions wrong = options(WriterKind::collective);
  wrong.timing = SaveTiming::asynchronous;
  EXPECT_THROW(CheckpointDirectory(*communicator_, wrong), Error);
  wrong = options();
  wrong.retention.total_limit = -1;
  EXPECT_THROW(CheckpointDirectory(*communicator_, wrong), Error);
  wrong = options();
  wrong.directory = "";
  EXPECT_THROW(CheckpointDirectory(*communicator_, wrong), Error);
  wrong = options();
  wrong.directory = "/proc/no/such/folder";
  EXPECT_THROW(CheckpointDirectory(*communicator_, wrong), Error);
}

TEST_F(SaveFailure, LeavesAForeignFileAlone) {
  // A folder where the checkpoint's name should be: the rename fails, nothing is lost.
  CheckpointDirectory directory(*communicator_, options());
  save(directory, 10);
  on_first_rank([&] { std::filesystem::create_directories(path_of(20) + "/inside"); });
  EXPECT_THROW(save(directory, 20), Error);
  on_first_rank([&] {
    EXPECT_TRUE(std::filesystem::exists(path_of(20) + "/inside"));
    EXPECT_TRUE(std::filesystem::exists(path_of(10)));
    EXPECT_FALSE(std::filesystem::exists(path_of(20) + ".tmp"));
  });
}

}  // namespace
}  // namespace lockstep
