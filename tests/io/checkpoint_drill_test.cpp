// Runs that are killed, starved of disk or shut out, and what the next start makes of it. Each run is a program of
// its own (save_drill.cpp), on its own number of ranks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint_format.hpp"
#include "io/save_fault.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "tests/io/made_state.hpp"

namespace lockstep {
namespace {

struct Outcome {
  int exit_code = 0;  // -1: killed
  std::string output;

  /// The word after `key` in the output.
  std::string word(const std::string& key) const {
    std::istringstream stream(output);
    for (std::string one; stream >> one;) {
      if (one == key && stream >> one) return one;
    }
    return "";
  }
};

std::string words_of(const std::vector<std::string>& arguments) {
  std::string words;
  for (const std::string& one : arguments) words += "'" + one + "' ";
  return words;
}

class Drill : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = test::make_test_folder(alone_, test::Place::memory); }
  void TearDown() override { test::remove_folder(alone_, folder_); }

  std::string run_folder() const { return folder_ + "/run"; }
  std::string path_of(std::int64_t step) const { return run_folder() + "/" + checkpoint_file_name(step); }

  std::string command(int num_ranks, const std::vector<std::string>& arguments) const {
    std::string start;
    if (num_ranks > 1) {
      start +=
          std::string(LOCKSTEP_MPIEXEC) + " -n " + std::to_string(num_ranks) + " --oversubscribe --bind-to none ";
    }
    return start + LOCKSTEP_SAVE_DRILL + " " + words_of(arguments);
  }

  Outcome run(int num_ranks, std::vector<std::string> arguments, const std::string& environment = "") {
    arguments.insert(arguments.begin(), run_folder());
    const std::string log = folder_ + "/log";
    const std::string line = environment + " " + command(num_ranks, arguments) + " > " + log + " 2>&1";
    const int status = std::system(line.c_str());
    std::ifstream file(log);
    Outcome out;
    out.output.assign(std::istreambuf_iterator<char>(file), {});
    // A shell reports a child that a signal ended as 128 + the signal.
    out.exit_code = WIFEXITED(status) && WEXITSTATUS(status) < 128 ? WEXITSTATUS(status) : -1;
    return out;
  }

  /// The end of a run of 40 steps that nothing disturbed.
  std::string undisturbed() {
    const std::string before = folder_;
    folder_ += "/reference";
    std::filesystem::create_directory(folder_);
    const Outcome outcome = run(1, {"40", "10"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    folder_ = before;
    return outcome.word("final");
  }

  /// A run on `num_ranks` ranks that dies at `stage` of the save of step 20; another, alone, goes on.
  void die_and_go_on(int num_ranks, const std::string& stage, const std::string& who, const std::string& timing) {
    SCOPED_TRACE(stage + who + " on " + std::to_string(num_ranks) + " ranks " + timing);
    std::filesystem::remove_all(run_folder());
    std::vector<std::string> arguments = {"40", "10", "--inject", "crash@save:" + stage + who + ",step=20"};
    if (!timing.empty()) arguments.push_back(timing);
    const Outcome killed = run(num_ranks, arguments);
    EXPECT_NE(killed.exit_code, 0) << killed.output;
    EXPECT_EQ(killed.word("final"), "");
    const Outcome next = run(1, {"40", "10"});
    EXPECT_EQ(next.exit_code, 0) << next.output;
    EXPECT_EQ(next.word("resumed"), stage == "renamed" ? "20" : "10") << next.output;
    EXPECT_EQ(next.word("final"), end_) << next.output;
    for (const auto& entry : std::filesystem::directory_iterator(run_folder())) {
      EXPECT_FALSE(entry.path().string().ends_with(temporary_suffix)) << entry.path();
    }
  }

  OneProcessCommunicator alone_;
  std::string folder_;
  std::string end_;
};

TEST_F(Drill, OneProcessDiesAtEachStage) {
  end_ = undisturbed();
  for (const std::string& stage : SaveFault::stage_names()) {
    die_and_go_on(1, stage, "", "");
    die_and_go_on(1, stage, "", "--async");
  }
}

TEST_F(Drill, OneRankOfTwoDiesAtEachStage) {
  end_ = undisturbed();
  int rank = 0;
  for (const std::string& stage : SaveFault::stage_names()) {
    rank = 1 - rank;
    die_and_go_on(2, stage, ",rank=" + std::to_string(rank), rank == 0 ? "--async" : "");
  }
}

TEST_F(Drill, AllOfThreeRanksDieAtEachStage) {
  end_ = undisturbed();
  bool is_async = false;
  for (const std::string& stage : SaveFault::stage_names()) {
    is_async = !is_async;
    die_and_go_on(3, stage, "", is_async ? "--async" : "");
  }
}

using Cases = Drill;

TEST_F(Cases, C079KilledWhileTheFileIsOpen) {
  end_ = undisturbed();
  die_and_go_on(2, "written", "", "--collective");
  die_and_go_on(1, "skeleton", "", "--collective");
}

TEST_F(Cases, C067TheReadWorksWithoutLocks) {
  ASSERT_EQ(run(1, {"20", "10"}).exit_code, 0);
  const int descriptor = ::open(path_of(20).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(descriptor, LOCK_EX | LOCK_NB), 0);
  const Outcome refused = run(1, {"40", "10"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.output.find("HDF5_USE_FILE_LOCKING"), std::string::npos) << refused.output;
  const Outcome read = run(1, {"40", "10"}, "HDF5_USE_FILE_LOCKING=FALSE");
  EXPECT_EQ(read.exit_code, 0) << read.output;
  EXPECT_EQ(read.word("resumed"), "20");
  ::close(descriptor);
}

// A small file system in memory, when this user may mount one.
class SmallDisk {
 public:
  SmallDisk(const std::string& folder, const std::string& size) : folder_(folder) {
    std::filesystem::create_directories(folder);
    is_mounted_ = ::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (is_mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return is_mounted_; }
  bool make_read_only() const {
    return ::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  std::string folder_;
  bool is_mounted_ = false;
};

TEST_F(Drill, AFullDiskCostsOneCheckpointAndNoMore) {
  end_ = undisturbed();
  // One checkpoint of 3.2 MB fits, a second one beside it does not.
  const SmallDisk disk(run_folder(), "5m");
  if (!disk.is_mounted()) GTEST_SKIP() << "needs the right to mount a small file system";
  const Outcome stopped = run(2, {"40", "10"});
  EXPECT_EQ(stopped.exit_code, 1) << stopped.output;
  EXPECT_NE(stopped.output.find("errno 28"), std::string::npos) << stopped.output;
  EXPECT_NE(stopped.output.find("step 20 could not be saved"), std::string::npos) << stopped.output;
  EXPECT_TRUE(std::filesystem::exists(path_of(10)));
  EXPECT_FALSE(std::filesystem::exists(path_of(20).append(temporary_suffix)));
  const Outcome kept_going = run(1, {"30", "10", "--keep-going"});
  EXPECT_EQ(kept_going.word("resumed"), "10");
  EXPECT_NE(kept_going.output.find("WARNING"), std::string::npos) << kept_going.output;
  EXPECT_TRUE(std::filesystem::exists(path_of(10)));
}

TEST_F(Drill, AReadOnlyFolderIsRefusedAtOnce) {
  const SmallDisk disk(run_folder(), "5m");
  if (!disk.is_mounted() || !disk.make_read_only()) GTEST_SKIP() << "needs the right to mount a file system";
  const Outcome refused = run(2, {"40", "10"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_NE(refused.output.find("errno 30"), std::string::npos) << refused.output;
  EXPECT_EQ(refused.word("resumed"), "");
}

TEST_F(Drill, ASecondRunIsRefusedWhileTheFirstLives) {
  std::filesystem::create_directory(run_folder());
  const pid_t first = ::fork();
  if (first == 0) {
    const std::string line = "exec " + command(1, {run_folder(), "100000000", "1000000", "--slow"}) + " > /dev/null";
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  const std::string lock = run_folder() + "/lockstep.lock";
  for (int i = 0; i < 200 && (!std::filesystem::exists(lock) || std::filesystem::file_size(lock) == 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const Outcome second = run(1, {"40", "10"});
  EXPECT_EQ(second.exit_code, 2) << second.output;
  EXPECT_NE(second.output.find("process " + std::to_string(first)), std::string::npos) << second.output;
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  EXPECT_EQ(run(1, {"40", "10"}).exit_code, 0);
}

std::vector<pid_t> children_of(pid_t process) {
  const std::string name = std::to_string(process);
  std::ifstream listed("/proc/" + name + "/task/" + name + "/children");
  std::vector<pid_t> out;
  for (pid_t child = 0; listed >> child;) out.push_back(child);
  return out;
}

// A run that goes on beside the test, until it ends or is killed. Ranks that their launcher leaves behind become
// children of the test, which must be their reaper.
class RunningRun {
 public:
  explicit RunningRun(const std::string& line) : process_(::fork()) {
    if (process_ != 0) return;
    ::execl("/bin/sh", "sh", "-c", ("exec " + line).c_str(), nullptr);
    ::_exit(127);
  }
  RunningRun(const RunningRun&) = delete;
  RunningRun& operator=(const RunningRun&) = delete;
  ~RunningRun() { kill_all(); }

  /// Waits for at most `time`.
  bool has_ended(std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (!has_ended_ && ::waitpid(process_, nullptr, WNOHANG) != process_) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return has_ended_ = true;
  }

  /// The ranks: the processes that mpirun has started, or the run itself where there is no mpirun.
  std::vector<pid_t> ranks(int num_ranks) const {
    return num_ranks == 1 ? std::vector<pid_t>{process_} : children_of(process_);
  }

  /// Kills some ranks; the launcher ends the others. What is left after a while is killed, too: a launcher may hang
  /// when a rank dies while they still meet.
  void kill_and_wait(const std::vector<pid_t>& victims) {
    for (const pid_t victim : victims) ::kill(victim, SIGKILL);
    has_ended(std::chrono::seconds(10));
    kill_all();
  }

 private:
  void kill_all() {
    for (std::vector<pid_t> left = children_of(::getpid()); !left.empty(); left = children_of(::getpid())) {
      for (const pid_t process : left) {
        ::kill(process, SIGKILL);
        ::waitpid(process, nullptr, 0);
      }
    }
    has_ended_ = true;
  }

  pid_t process_;
  bool has_ended_ = false;
};

// Lives of one run on changing numbers of ranks, each but the last ended by a kill of one rank or of all at a random
// moment. The short form of a soak; LOCKSTEP_SOAK_KILLS=200 is the long one.
class Soak : public Drill {
 protected:
  void soak(int num_kills, const std::vector<int>& rank_counts, int longest_life_ms) {
    if (const char* const wanted = std::getenv("LOCKSTEP_SOAK_KILLS")) num_kills = std::atoi(wanted);
    const std::string num_steps = std::to_string(num_kills * 250);
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    std::mt19937 random(20261130);
    const auto any_of = [&](std::size_t count) {
      return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
    };
    long long newest = 0;  // the newest checkpoint that was there after the last kill
    int num_kills_of_one = 0;
    for (int kills = 0; kills < num_kills; ++kills) {
      SCOPED_TRACE("life " + std::to_string(kills));
      const int num_ranks = rank_counts[any_of(rank_counts.size())];
      RunningRun life(
          command(num_ranks, {run_folder(), num_steps, "3", "--slow", any_of(2) == 0 ? "--async" : "--sync"}) +
          " > " + folder_ + "/log 2>&1");
      ASSERT_FALSE(life.has_ended(std::chrono::milliseconds(20 + any_of(static_cast<std::size_t>(longest_life_ms)))))
          << told();
      std::vector<pid_t> victims = life.ranks(num_ranks);
      if (victims.size() > 1 && any_of(2) == 0) {
        victims = {victims[any_of(victims.size())]};
        ++num_kills_of_one;
      }
      life.kill_and_wait(victims);
      expect_resumed_from(newest);
      newest = newest_on_disk();
    }
    const Outcome end = run(rank_counts.back(), {num_steps, num_steps});
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_EQ(end.word("resumed"), std::to_string(newest)) << end.output;
    EXPECT_GT(newest, 0) << "no life was long enough for a checkpoint";
    std::filesystem::remove_all(run_folder());
    const Outcome reference = run(1, {num_steps, num_steps});
    EXPECT_NE(end.word("final"), "");
    EXPECT_EQ(end.word("final"), reference.word("final"));
    std::printf("%d kills, %d of them of one rank alone; the last life went on from step %lld\n", num_kills,
                num_kills_of_one, newest);
  }

 private:
  /// What the life that has just been killed said about its start, if it came so far.
  void expect_resumed_from(long long step) {
    const Outcome life{0, told()};
    EXPECT_EQ(life.output.find("damaged"), std::string::npos) << life.output;
    if (!life.word("resumed").empty()) {
      EXPECT_EQ(life.word("resumed"), std::to_string(step)) << life.output;
    }
  }

  std::string told() const {
    std::ifstream file(folder_ + "/log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  long long newest_on_disk() const {
    long long newest = 0;
    if (!std::filesystem::exists(run_folder())) return newest;
    for (const auto& entry : std::filesystem::directory_iterator(run_folder())) {
      newest = std::max<long long>(newest, step_of_file_name(entry.path().filename().string()).value_or(0));
    }
    return newest;
  }
};

TEST_F(Soak, KillsOfAProcessLoseNothing) { soak(20, {1}, 250); }

TEST_F(Soak, KillsOfRanksLoseNothing) { soak(6, {2, 3}, 1500); }

}  // namespace
}  // namespace lockstep
