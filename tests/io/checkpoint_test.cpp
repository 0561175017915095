#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint_directory.hpp"
#include "tests/io/made_state.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep {
namespace {

using test::MadeState;

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    communicator_ = test::make();
    folder_ = test::make_test_folder(*communicator_);
  }
  void TearDown() override { test::remove_folder(*communicator_, folder_); }

  int rank() const { return communicator_->rank(); }

  CheckpointOptions options() const {
    CheckpointOptions out;
    out.directory = folder_ + "/run";
    out.writer = WriterKind::direct;
    return out;
  }

  Snapshot snapshot_of(MadeState& state, std::int64_t step) const {
    return state.snapshot(step, communicator_->rank(), communicator_->num_ranks());
  }

  std::unique_ptr<Communicator> communicator_;
  std::string folder_;
};

TEST_F(Checkpoint, ComesBackAsItWasSaved) {
  MadeState state = test::small_state();
  CheckpointDirectory directory(*communicator_, options());
  EXPECT_EQ(directory.open_newest(), nullptr);
  directory.start_save(snapshot_of(state, 40));
  const auto reader = directory.open_newest();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->path(), folder_ + "/run/step-00000040.h5");
  EXPECT_EQ(reader->attributes(), state.attributes);
  ASSERT_EQ(reader->tensors().size(), state.num_tensors());
  for (std::size_t i = 0; i < state.num_tensors(); ++i) {
    EXPECT_EQ(reader->tensors()[i].name, state.info(i).name);
    EXPECT_EQ(reader->tensors()[i].section, state.info(i).section);
    EXPECT_EQ(reader->tensors()[i].type, state.info(i).type);
    EXPECT_EQ(reader->tensors()[i].shape, state.info(i).shape);
  }
  EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
}

}  // namespace
}  // namespace lockstep
