#include "runtime/launch/stop_files.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "runtime/launch/stall_guard.hpp"
#include "runtime/launch/stop_request.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/stop_filesXXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  void touch(const char* name) const { std::ofstream(path_ / name).flush(); }
  bool has(const char* name) const { return std::filesystem::exists(path_ / name); }

 private:
  std::filesystem::path path_;
};

TEST(StopFiles, EachRequestIsTakenOnceAndConsumed) {
  const Folder folder;
  StopFiles files(folder.path(), 0.0);
  EXPECT_FALSE(files.take_halt());
  EXPECT_FALSE(files.take_save());
  folder.touch("HALT");
  folder.touch("SAVE");
  EXPECT_TRUE(files.take_halt());
  EXPECT_TRUE(files.take_save());
  EXPECT_FALSE(folder.has("HALT"));
  EXPECT_FALSE(folder.has("SAVE"));
  EXPECT_FALSE(files.take_halt());
  EXPECT_FALSE(files.take_save());
  folder.touch("SAVE");
  EXPECT_TRUE(files.take_save());
}

TEST(StopFiles, AskTheFolderOnlyNowAndThen) {
  const Folder folder;
  StopFiles files(folder.path(), 3600.0);
  EXPECT_FALSE(files.take_halt());
  folder.touch("HALT");
  EXPECT_FALSE(files.take_halt());  // not asked again within the hour
  EXPECT_TRUE(folder.has("HALT"));
}

TEST(StopFiles, AFolderThatIsNotThereIsNoRequest) {
  StopFiles files("/nowhere/at/all", 0.0);
  EXPECT_FALSE(files.take_halt());
}

TEST(StopFiles, RequestThatCannotBeRemovedIsObeyedOnce) {
  const Folder folder;
  std::filesystem::create_directories(folder.path() / "HALT" / "not-empty");  // remove() fails on it, as root too
  StopFiles files(folder.path(), 0.0);
  EXPECT_TRUE(files.take_halt());
  EXPECT_FALSE(files.take_halt());
}

TEST(StopFiles, DoneIsMarkedAndTakenAway) {
  const Folder folder;
  StopFiles files(folder.path());
  EXPECT_FALSE(files.done());
  files.mark_done("step 120");
  files.mark_done("step 240");
  EXPECT_TRUE(files.done());
  std::string line;
  std::getline(std::ifstream(folder.path() / "DONE"), line);
  EXPECT_EQ(line, "step 240");
  files.clear_done();
  EXPECT_FALSE(files.done());
}

TEST(StopFiles, SaysWhyDoneCannotBeWritten) {
  StopFiles files("/nowhere/at/all");
  EXPECT_THROW(files.mark_done("step 1"), Error);
}

TEST(StallGuard, ProgressSetsTheCountBack) {
  const Folder folder;
  for (std::int64_t step = 0; step < 20; ++step) {
    StallGuard guard(folder.path(), 2);
    EXPECT_EQ(guard.count_launch(step).at_this_step, 1);
  }
  EXPECT_EQ(StallGuard(folder.path(), 2).count_launch(19).at_this_step, 2);
  EXPECT_EQ(StallGuard(folder.path(), 2).count_launch(20).at_this_step, 1);
}

TEST(StallGuard, CountsAllLaunchesSinceTheFirst) {
  const Folder folder;
  const double before = unix_seconds();
  const LaunchCount first = StallGuard(folder.path(), 2).count_launch(0);
  EXPECT_EQ(first.in_all, 1);
  EXPECT_NEAR(first.first_unix_seconds, before, 60.0);
  for (std::int64_t launch = 2; launch <= 6; ++launch) {
    const LaunchCount count = StallGuard(folder.path(), 2).count_launch(10 * launch);
    EXPECT_EQ(count.in_all, launch);
    EXPECT_NEAR(count.first_unix_seconds, first.first_unix_seconds, 1e-3);
  }
}

TEST(StallGuard, AnUnreadableCountStartsAgain) {
  const Folder folder;
  std::ofstream(folder.path() / "RESTARTS") << "garbage";
  EXPECT_EQ(StallGuard(folder.path(), 2).count_launch(5).at_this_step, 1);
}

TEST(StallGuard, ZeroIsNoLimit) {
  const Folder folder;
  for (int launch = 1; launch <= 50; ++launch)
    EXPECT_EQ(StallGuard(folder.path(), 0).count_launch(3).at_this_step, launch);
  EXPECT_THROW(StallGuard(folder.path(), -1), Error);
}

TEST(Cases, C091RestartsWithoutProgress) {
  // Preempted before the first update three times: SLURM_RESTART_COUNT is 0, 1, 2, then 3.
  const Folder folder;
  for (int launch = 1; launch <= 3; ++launch)
    EXPECT_EQ(StallGuard(folder.path(), 3).count_launch(0).at_this_step, launch);
  for (int again = 0; again < 2; ++again) {
    try {
      StallGuard(folder.path(), 3).count_launch(0);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 86);
      EXPECT_NE(std::string(error.what()).find("3 launches in a row began at step 0"), std::string::npos);
    }
  }
  // The save is too slow for the grace time: each launch begins at the step of the last good one.
  for (int launch = 1; launch <= 3; ++launch)
    EXPECT_EQ(StallGuard(folder.path(), 3).count_launch(40).at_this_step, launch);
  EXPECT_THROW(StallGuard(folder.path(), 3).count_launch(40).at_this_step, Error);
}

TEST(StopRequest, NamesWhatAskedForIt) {
  const Folder folder;
  const StopSignals none({});
  StopFiles files(folder.path(), 0.0);
  const Deadline far(unix_seconds() + 1e6, 10.0);
  StopRequest request(none, &far, &files);
  EXPECT_FALSE(request.requested());
  EXPECT_EQ(request.reason(), "");
  folder.touch("HALT");
  EXPECT_TRUE(request.requested());
  EXPECT_TRUE(request.requested());
  EXPECT_EQ(request.reason(), "the file HALT asked for it");

  const Deadline past(unix_seconds() + 5.0, 10.0);
  StopRequest late(none, &past, nullptr);
  EXPECT_TRUE(late.requested());
  EXPECT_NE(late.reason().find("the allocation ends in"), std::string::npos);

  const StopSignals signals({SIGUSR1});
  StopRequest other_rank(signals, nullptr, nullptr);
  EXPECT_FALSE(other_rank.requested());
  kill(getpid(), SIGUSR1);
  while (!other_rank.requested()) usleep(1000);
  EXPECT_EQ(other_rank.reason().rfind("SIGUSR1 came", 0), 0U) << other_rank.reason();
}

}  // namespace
}  // namespace lockstep
