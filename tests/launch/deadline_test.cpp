#include "runtime/launch/deadline.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

TEST(Deadline, StopsWhenAStepASaveAndTheMarginDoNotFit) {
  Deadline deadline(1000.0, 30.0);
  EXPECT_FALSE(deadline.reached(969.0));
  EXPECT_TRUE(deadline.reached(971.0));
  deadline.observe_step(5.0);
  deadline.observe_save(12.0);
  EXPECT_EQ(deadline.needed_seconds(), 47.0);
  EXPECT_FALSE(deadline.reached(952.0));
  EXPECT_FALSE(deadline.reached(953.0));  // exactly what is needed is left
  EXPECT_TRUE(deadline.reached(953.5));
  EXPECT_NE(deadline.reason(953.5).find("46.5 s"), std::string::npos) << deadline.reason(953.5);
}

TEST(Deadline, KeepsTheLongestSeenNotTheLast) {
  Deadline deadline(1000.0, 0.0);
  deadline.observe_step(9.0);
  deadline.observe_step(1.0);
  deadline.observe_save(20.0);
  deadline.observe_save(2.0);
  EXPECT_EQ(deadline.needed_seconds(), 29.0);
}

TEST(Deadline, IsReachedWhenItIsLongPast) { EXPECT_TRUE(Deadline(1000.0, 0.0).reached(5000.0)); }

TEST(Deadline, WithoutAnEndNeverStops) {
  Deadline deadline(std::nullopt, 30.0);
  deadline.observe_step(1e9);
  EXPECT_FALSE(deadline.reached(1e12));
}

TEST(Deadline, RefusesANegativeMargin) { EXPECT_THROW(Deadline(1000.0, -1.0), Error); }

// A clock that a run of equal steps moves: the last step and the save end before the allocation does.
TEST(Deadline, TheLastSaveEndsBeforeTheAllocation) {
  for (const double step : {0.05, 1.0, 7.3, 45.0}) {
    for (const double save : {0.1, 3.0, 60.0}) {
      Deadline deadline(600.0, 10.0);
      double now = 0.0;
      int steps = 0;
      deadline.observe_step(step);  // the first of each is seen long before
      deadline.observe_save(save);
      while (!deadline.reached(now)) {
        now += step;
        ++steps;
      }
      EXPECT_LE(now + save, 600.0 - 10.0 + step) << step << " " << save;
      EXPECT_LE(now + save, 600.0) << step << " " << save;
      EXPECT_GT(now + 2 * step + save + 10.0, 600.0) << "stopped too early: " << step << " " << save;
    }
  }
}

TEST(Cases, C096ShortTimeLimits) {
  // 2 minutes of limit: the decision follows what is left, not how long the run has been going.
  Deadline deadline(120.0, 10.0);
  deadline.observe_step(0.5);
  deadline.observe_save(2.0);
  EXPECT_FALSE(deadline.reached(30.0));
  EXPECT_FALSE(deadline.reached(100.0));
  EXPECT_TRUE(deadline.reached(108.0));
}

TEST(TimeLimit, IsSpelledAsForSbatch) {
  EXPECT_EQ(parse_time_limit("90"), 90 * 60.0);
  EXPECT_EQ(parse_time_limit("0:08"), 8.0);
  EXPECT_EQ(parse_time_limit("2:30"), 150.0);
  EXPECT_EQ(parse_time_limit("24:00:00"), 86400.0);
  EXPECT_EQ(parse_time_limit("1-0"), 86400.0);
  EXPECT_EQ(parse_time_limit("2-12:30"), 2 * 86400.0 + 12 * 3600.0 + 30 * 60.0);
  EXPECT_EQ(parse_time_limit("0-00:00:05"), 5.0);
}

TEST(TimeLimit, RefusesOtherSpellings) {
  for (const char* limit : {"", "0", "0:00", "-5", "1h", "1:2:3:4", "soon", "1.5", "1-2-3"}) {
    EXPECT_THROW(parse_time_limit(limit), Error) << limit;
  }
}

TEST(AllocationEnd, IsTheEarlierOfSlurmsAndOurOwn) {
  SlurmEnvironment slurm;
  EXPECT_EQ(allocation_end(slurm, std::nullopt, 100.0), std::nullopt);
  EXPECT_EQ(allocation_end(slurm, 60.0, 100.0), 160.0);
  slurm.job_id = 7;
  slurm.end_time = 1000;
  EXPECT_EQ(allocation_end(slurm, std::nullopt, 100.0), 1000.0);
  EXPECT_EQ(allocation_end(slurm, 60.0, 100.0), 160.0);
  EXPECT_EQ(allocation_end(slurm, 6000.0, 100.0), 1000.0);
}

// Puts a stand-in for squeue before everything else in PATH, for as long as it lives.
class FakeSqueue {
 public:
  explicit FakeSqueue(const std::string& body) : path_(std::getenv("PATH")) {
    char pattern[] = "/tmp/squeueXXXXXX";
    folder_ = mkdtemp(pattern);
    const std::filesystem::path file = folder_ / "squeue";
    std::ofstream(file) << "#!/bin/sh\n" << body << '\n';
    chmod(file.c_str(), 0755);
    setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
  }
  ~FakeSqueue() {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

 private:
  std::string path_;
  std::filesystem::path folder_;
};

TEST(AllocationEnd, IsAskedFromSqueueWhereTheEnvironmentIsSilent) {
  SlurmEnvironment slurm;
  slurm.job_id = 42;
  {
    const FakeSqueue squeue("case \"$SLURM_TIME_FORMAT $*\" in '%s '*--jobs=42*) echo 1234567;; *) echo 1;; esac");
    EXPECT_EQ(allocation_end(slurm, std::nullopt, 100.0), 1234567.0);
  }
  for (const char* body : {"echo N/A", "exit 1", "echo 1234567; exit 1", "true", "echo slurm_load_jobs error >&2"}) {
    const FakeSqueue squeue(body);
    EXPECT_EQ(allocation_end(slurm, std::nullopt, 100.0), std::nullopt) << body;
    EXPECT_EQ(allocation_end(slurm, 60.0, 100.0), 160.0) << body;
  }
}

}  // namespace
}  // namespace lockstep
