// A checkpoint is believed only when it is whole, and a run is never left without one for another reason.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "io/checkpoint_file.hpp"
#include "io/digest.hpp"
#include "tests/io/checkpoint_fixture.hpp"

namespace lockstep {
namespace {

using test::MadeState;

class CheckpointDamage : public test::CheckpointTest {
 protected:
  CheckpointDamage() { place_ = test::Place::memory; }

  /// **Collective.** Three good checkpoints.
  void SetUp() override {
    CheckpointTest::SetUp();
    save_steps({10, 20, 30}, options());
    messages_.clear();
  }

  /// **Collective.** A fresh copy of the newest file, changed by `change` on rank 0, is passed over, named once.
  template <class Change>
  void expect_passed_over(const std::string& what, const Change& change) {
    on_first_rank([&] {
      std::filesystem::copy_file(path_of(20), path_of(30), std::filesystem::copy_options::overwrite_existing);
      std::filesystem::remove(path_of(30));
      std::filesystem::copy_file(kept(), path_of(30));
      change(path_of(30));
    });
    messages_.clear();
    EXPECT_EQ(newest_step(), 20) << what;
    if (is_first()) {
      const std::size_t first = messages_.find(path_of(30));
      EXPECT_NE(first, std::string::npos) << what << ": " << messages_;
      EXPECT_EQ(std::count(messages_.begin(), messages_.end(), '\n'), 1) << what << ": " << messages_;
    }
  }

  /// **Collective.** Keeps a copy of the newest file for expect_passed_over().
  void keep_newest() {
    on_first_rank([&] { std::filesystem::copy_file(path_of(30), kept()); });
  }
  std::string kept() const { return folder_ + "/kept.h5"; }
};

using Cases = CheckpointDamage;

TEST_F(Cases, C063TruncatedNewestCheckpoint) {
  keep_newest();
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(kept()));
  for (const std::int64_t left : {size - 1, size - 100, size - 4096, size / 2, std::int64_t{96}, std::int64_t{0}}) {
    expect_passed_over("cut to " + std::to_string(left), [&](const std::string& path) {
      std::filesystem::resize_file(path, static_cast<std::uintmax_t>(left));
    });
  }
}

TEST_F(Cases, C064DamageThatHdf5DoesNotSee) {
  MadeState state(1024);
  state.add("weights", "w", ElementType::float32, {1000000});
  {
    CheckpointDirectory directory(*communicator_, options());
    directory.start_save(snapshot_of(state, 30));
  }
  std::uint64_t begin = 0;
  if (is_first()) begin = CheckpointFile(path_of(30)).catalogue().tensors[0].offset;
  keep_newest();
  expect_passed_over("a flipped byte", [&](const std::string& path) {
    const std::string byte = read_bytes(path).substr(begin + 2000001, 1);
    overwrite(path, begin + 2000001, std::string(1, static_cast<char>(byte[0] ^ 1)));
  });
  expect_passed_over("a zeroed page", [&](const std::string& path) {
    overwrite(path, (begin / 4096 + 100) * 4096, std::string(4096, '\0'));
  });
  expect_passed_over("cut and extended again", [&](const std::string& path) {
    const auto size = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, size - 2000000);
    std::filesystem::resize_file(path, size);
  });
}

TEST_F(CheckpointDamage, IsSeenInEveryPartOfTheFile) {
  keep_newest();
  std::vector<std::uint64_t> places;
  if (is_first()) {
    const CheckpointHeader header = CheckpointFile(kept()).catalogue().header;
    places = {3,
              100,
              header_bytes - 1,
              header_bytes + 9,
              header.blocks_begin + 24,
              header.blocks_begin + 40,
              header.blocks_end() + 200,
              header.data_begin,
              header.data_end - 1,
              header.data_end + 30,
              header.file_bytes - 1};
  }
  for (std::size_t i = 0; i < 11; ++i) {
    expect_passed_over("place " + std::to_string(i), [&](const std::string& path) {
      const std::string byte = read_bytes(path).substr(places[i], 1);
      overwrite(path, places[i], std::string(1, static_cast<char>(byte[0] ^ 0x40)));
    });
  }
}

TEST_F(CheckpointDamage, IsPassedOverTwice) {
  on_first_rank([&] {
    overwrite(path_of(30), 50, "?");
    overwrite(path_of(20), 50, "?");
  });
  EXPECT_EQ(newest_step(), 10);
  on_first_rank([&] { EXPECT_EQ(std::count(messages_.begin(), messages_.end(), '\n'), 2) << messages_; });
}

TEST_F(CheckpointDamage, OfAllCheckpointsIsAnErrorAndNoStartFromZero) {
  on_first_rank([&] {
    for (const std::int64_t step : {10, 20, 30}) overwrite(path_of(step), 50, "?");
  });
  EXPECT_EQ(newest_step(), -2);
  EXPECT_NE(messages_.find("none of the 3 checkpoints"), std::string::npos) << messages_;
}

TEST_F(CheckpointDamage, IsReplacedWhenTheRunComesByAgain) {
  on_first_rank([&] { overwrite(path_of(30), 50, "?"); });
  CheckpointOptions limited = options();
  limited.retention.total_limit = 2;
  {
    CheckpointDirectory directory(*communicator_, limited);
    const auto reader = directory.open_newest();
    EXPECT_EQ(reader->path(), path_of(20));
    MadeState state = test::small_state(25);
    directory.start_save(snapshot_of(state, 25));
    directory.finish();
    on_first_rank([&] {
      // The damaged file counts for nothing; 20 and 25 stay.
      EXPECT_EQ(names_in_run_folder(), (std::vector<std::string>{"latest", "lockstep.lock", "step-00000020.h5",
                                                                 "step-00000025.h5", "step-00000030.h5"}));
    });
    state = test::small_state(30);
    directory.start_save(snapshot_of(state, 30));
  }
  EXPECT_EQ(newest_step(), 30);
  on_first_rank([&] {
    EXPECT_EQ(names_in_run_folder(),
              (std::vector<std::string>{"latest", "lockstep.lock", "step-00000025.h5", "step-00000030.h5"}));
  });
}

TEST_F(CheckpointDamage, OfANamedFileIsAnError) {
  on_first_rank([&] { overwrite(path_of(30), 50, "?"); });
  CheckpointDirectory directory(*communicator_, options());
  EXPECT_THROW(directory.open(path_of(30)), Error);
  EXPECT_THROW(directory.open(folder_ + "/nothing.h5"), Error);
  EXPECT_EQ(directory.open(path_of(20))->path(), path_of(20));
}

// Runs `work` in a child process until the parent is done with it.
class Child {
 public:
  template <class Work>
  explicit Child(const Work& work) {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) return;
    id_ = ::fork();
    if (id_ == 0) {
      const bool is_ready = work();
      if (::write(ends[1], is_ready ? "y" : "n", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    char answer = 'n';
    is_ready_ = ::read(ends[0], &answer, 1) == 1 && answer == 'y';
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }

  bool is_ready() const { return is_ready_; }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }

 private:
  pid_t id_ = -1;
  bool is_ready_ = false;
};

TEST_F(Cases, C067LockRefusedAtResume) {
  std::unique_ptr<Child> writer;
  on_first_rank([&] {
    writer = std::make_unique<Child>([&] {
      const int descriptor = ::open(path_of(30).c_str(), O_RDWR);
      return descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    });
    EXPECT_TRUE(writer->is_ready());
    overwrite(path_of(30), header_bytes + 20, "\1");  // as HDF5 2 marks a file that is open for writing
  });
  EXPECT_EQ(newest_step(), -2);  // no fall-back
  EXPECT_NE(messages_.find(path_of(30)), std::string::npos) << messages_;
  EXPECT_NE(messages_.find("errno 11"), std::string::npos) << messages_;
  EXPECT_NE(messages_.find("HDF5_USE_FILE_LOCKING"), std::string::npos) << messages_;
}

TEST_F(CheckpointDamage, IsNotWhatALaterFormatOrAMissingPermissionIs) {
  on_first_rank([&] {
    std::string body = "lockstep-checkpoint\nformat: 2\n";
    body += "header-digest: " + hexadecimal(digest_of(std::as_bytes(std::span(body.data(), body.size())))) + "\n";
    body.resize(header_bytes, '\0');
    overwrite(path_of(30), 0, body);
  });
  EXPECT_EQ(newest_step(), -2);
  EXPECT_NE(messages_.find("format 2"), std::string::npos) << messages_;
  // A folder in the file's place cannot be read by anybody, root included.
  on_first_rank([&] {
    std::filesystem::remove(path_of(30));
    std::filesystem::create_directory(path_of(30));
  });
  messages_.clear();
  EXPECT_EQ(newest_step(), -2);
  EXPECT_NE(messages_.find("errno"), std::string::npos) << messages_;
}

TEST_F(Cases, C078TheNewestPointer) {
  const std::string link = run_folder() + "/latest";
  on_first_rank([&] { EXPECT_EQ(std::filesystem::read_symlink(link), "step-00000030.h5"); });
  const auto expect_30 = [&](const std::string& what, const auto& change) {
    on_first_rank([&] {
      std::filesystem::remove(link);
      change();
    });
    EXPECT_EQ(newest_step(), 30) << what;
  };
  expect_30("to a missing file", [&] { std::filesystem::create_symlink("step-00000099.h5", link); });
  expect_30("empty", [&] { std::ofstream(link).flush(); });
  expect_30("half-written", [&] { std::ofstream(link) << "step-000"; });
  expect_30("missing", [] {});
  on_first_rank([&] {
    overwrite(path_of(30), 50, "?");
    std::filesystem::create_symlink("step-00000030.h5", link);
  });
  EXPECT_EQ(newest_step(), 20) << "to a damaged file";
  // The next save puts it right.
  CheckpointDirectory directory(*communicator_, options());
  MadeState state = test::small_state(40);
  directory.start_save(snapshot_of(state, 40));
  on_first_rank([&] { EXPECT_EQ(std::filesystem::read_symlink(link), "step-00000040.h5"); });
}

TEST_F(Cases, C080RanksSeeDifferentDirectoryContents) {
  // Every rank but the first looks at a folder of its own, into which the run's folder comes late.
  const std::filesystem::path before = std::filesystem::current_path();
  const std::string own = folder_ + "/view" + std::to_string(communicator_->rank());
  std::filesystem::create_directory(own);
  std::thread late([&] {
    if (!is_first()) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    std::filesystem::create_directory_symlink(run_folder(), own + "/run");
  });
  if (is_first()) late.join();
  communicator_->barrier();
  std::filesystem::current_path(own);
  {
    CheckpointOptions relative = options();
    relative.directory = "run";
    CheckpointDirectory directory(*communicator_, relative);
    const auto reader = directory.open_newest();
    EXPECT_EQ(reader->path(), "run/step-00000030.h5");
    MadeState state = test::small_state(30);
    EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
  }
  std::filesystem::current_path(before);
  if (late.joinable()) late.join();
}

TEST_F(Cases, C081PartsOfTwoGenerations) {
  keep_newest();
  // Each region of the step-20 file into the step-30 file: all of the same length, all valid where they come from.
  for (int region = 0; region < 4; ++region) {
    expect_passed_over("region " + std::to_string(region), [&](const std::string& path) {
      const CheckpointHeader header = CheckpointFile(path).catalogue().header;
      const std::string other = read_bytes(path_of(20));
      const std::uint64_t bounds[] = {0, header.blocks_begin, header.blocks_end(), header.data_end,
                                      header.file_bytes};
      ASSERT_EQ(other.size(), header.file_bytes);
      if (region == 2) {
        overwrite(path, header.data_begin, other.substr(header.data_begin, header.data_end - header.data_begin));
      } else {
        overwrite(path, bounds[region], other.substr(bounds[region], bounds[region + 1] - bounds[region]));
      }
    });
  }
}

TEST_F(CheckpointDamage, IsNotALeftoverOfAnUnfinishedSave) {
  on_first_rank([&] {
    std::ofstream(path_of(40) + ".tmp") << "half a file";
    std::ofstream(run_folder() + "/skeleton.h5.tmp") << "";
    std::ofstream(run_folder() + "/notes.txt") << "mine";
    std::ofstream(run_folder() + "/download.h5.tmp") << "mine";
  });
  EXPECT_EQ(newest_step(), 30);
  on_first_rank([&] {
    EXPECT_EQ(names_in_run_folder(),
              (std::vector<std::string>{"download.h5.tmp", "latest", "lockstep.lock", "notes.txt", "step-00000010.h5",
                                        "step-00000020.h5", "step-00000030.h5"}));
  });
}

TEST_F(CheckpointDamage, CannotComeFromASecondRunInTheFolder) {
  std::unique_ptr<Child> other;
  on_first_rank([&] {
    other = std::make_unique<Child>([&] {
      static const RunLock lock(run_folder());
      return lock.is_held();
    });
    EXPECT_TRUE(other->is_ready());
  });
  EXPECT_EQ(newest_step(), -2);
  EXPECT_NE(messages_.find("another run"), std::string::npos) << messages_;
  EXPECT_NE(messages_.find("process"), std::string::npos) << messages_;
  on_first_rank([&] { other->kill(); });
  EXPECT_EQ(newest_step(), 30);
}

}  // namespace
}  // namespace lockstep
