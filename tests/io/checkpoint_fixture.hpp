#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint_directory.hpp"
#include "io/posix_file.hpp"
#include "tests/io/made_state.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {

/// A folder of its own for each test, on all ranks, and what tests of checkpoints do all the time.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    communicator_ = make();
    folder_ = make_test_folder(*communicator_, place_);
  }
  void TearDown() override { remove_folder(*communicator_, folder_); }

  bool is_first() const { return communicator_->rank() == 0; }
  std::string run_folder() const { return folder_ + "/run"; }
  std::string path_of(std::int64_t step) const { return run_folder() + "/" + checkpoint_file_name(step); }

  /// Warnings go to messages_.
  CheckpointOptions options(WriterKind writer = WriterKind::direct) {
    CheckpointOptions out;
    out.directory = run_folder();
    out.writer = writer;
    out.report = [this](const std::string& message) { messages_ += message + "\n"; };
    return out;
  }

  Snapshot snapshot_of(MadeState& state, std::int64_t step) const {
    return state.snapshot(step, communicator_->rank(), communicator_->num_ranks());
  }

  /// **Collective.** Saves the state of each of these steps (its seed is the step) and closes the folder.
  void save_steps(const std::vector<std::int64_t>& steps, const CheckpointOptions& options) {
    CheckpointDirectory directory(*communicator_, options);
    for (const std::int64_t step : steps) {
      MadeState state = small_state(static_cast<std::uint64_t>(step));
      directory.start_save(snapshot_of(state, step));
      directory.wait_until_copied();
    }
    directory.finish();
  }

  /// **Collective.** The step that a run would go on from; -1: none; -2: an error, its text in messages_.
  std::int64_t newest_step() {
    try {
      CheckpointDirectory directory(*communicator_, options());
      const auto reader = directory.open_newest();
      if (!reader) return -1;
      const std::int64_t step = *step_of_file_name(std::filesystem::path(reader->path()).filename().string());
      MadeState state = small_state(static_cast<std::uint64_t>(step));
      EXPECT_EQ(differences(*communicator_, *reader, state), "") << "step " << step;
      return step;
    } catch (const Error& error) {
      messages_ += error.what();
      return -2;
    }
  }

  /// **Collective.** Does something to files on rank 0 alone.
  template <class Work>
  void on_first_rank(const Work& work) {
    agree(*communicator_, [&] {
      if (is_first()) work();
    });
  }

  /// Overwrites bytes of a file; on one rank.
  static void overwrite(const std::string& path, std::uint64_t offset, const std::string& bytes) {
    PosixFile(path, FileAccess::write).write_at(std::as_bytes(std::span(bytes.data(), bytes.size())), offset);
  }

  static std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<std::string> names_in_run_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(run_folder())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Place place_ = Place::disk;
  std::unique_ptr<Communicator> communicator_;
  std::string folder_;
  std::string messages_;
};

}  // namespace lockstep::test
