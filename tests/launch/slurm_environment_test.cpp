#include "runtime/launch/slurm_environment.hpp"

#include <gtest/gtest.h>

#include <map>

namespace lockstep {
namespace {

SlurmEnvironment environment_of(const std::map<std::string, std::string>& variables) {
  return SlurmEnvironment::read([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// What a task of `srun -N2 -n4` in a batch job sees.
std::map<std::string, std::string> srun_task() {
  return {{"SLURM_JOB_ID", "1234"},      {"SLURM_JOB_NUM_NODES", "2"},     {"SLURM_NTASKS", "4"},
          {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_TASKS", "4"},    {"SLURM_PROCID", "3"},
          {"SLURM_LOCALID", "1"},        {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURMD_NODENAME", "n2"},
          {"SLURM_JOB_PARTITION", "low"}};
}

TEST(SlurmEnvironment, OutsideSlurmThereIsNothingToSay) {
  const SlurmEnvironment environment = environment_of({});
  EXPECT_FALSE(environment.in_job());
  EXPECT_EQ(environment.describe(), "");
  EXPECT_EQ(environment.job_name(), "");
  EXPECT_EQ(environment.folder_of_task("run"), "run");
  EXPECT_EQ(environment.launcher, "none");
  EXPECT_TRUE(check_launch(environment, 1).empty());
}

TEST(SlurmEnvironment, ReadsATaskOfSrun) {
  auto variables = srun_task();
  variables["SLURM_RESTART_COUNT"] = "2";
  variables["SLURM_JOB_END_TIME"] = "1796000000";
  const SlurmEnvironment environment = environment_of(variables);
  EXPECT_EQ(environment.job_name(), "1234");
  EXPECT_EQ(environment.launcher, "srun");
  EXPECT_EQ(environment.launched_ranks, 4);
  EXPECT_EQ(environment.launch_rank, 3);
  EXPECT_EQ(environment.restart_count, 2);
  EXPECT_EQ(environment.end_time, 1796000000);
  EXPECT_EQ(environment.describe(), "Slurm job 1234, partition low, 2 nodes (n[1-2]), started by srun, restart 2");
  EXPECT_TRUE(check_launch(environment, 4).empty());
}

TEST(SlurmEnvironment, RanksOfMpirunDoNotTakeTheDaemonsNumbers) {
  auto variables = srun_task();  // of orted, which srun started as one of 2 tasks
  variables["SLURM_STEP_NUM_TASKS"] = "2";
  variables["SLURM_PROCID"] = "1";
  variables["OMPI_COMM_WORLD_SIZE"] = "4";
  variables["OMPI_COMM_WORLD_RANK"] = "2";
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  const SlurmEnvironment environment = environment_of(variables);
  EXPECT_EQ(environment.launcher, "mpirun");
  EXPECT_EQ(environment.launched_ranks, 4);
  EXPECT_EQ(environment.launch_rank, 2);
}

TEST(SlurmEnvironment, UnreadableNumbersAreAbsent) {
  const SlurmEnvironment environment = environment_of({{"SLURM_JOB_ID", "12"},
                                                       {"SLURM_RESTART_COUNT", "many"},
                                                       {"SLURM_NTASKS", ""},
                                                       {"SLURM_ARRAY_TASK_ID", "-1"},
                                                       {"SLURM_ARRAY_JOB_ID", "12"},
                                                       {"SLURM_JOB_END_TIME", "12x"}});
  EXPECT_EQ(environment.restart_count, 0);
  EXPECT_FALSE(environment.num_tasks);
  EXPECT_FALSE(environment.end_time);
  EXPECT_EQ(environment.job_name(), "12");
}

TEST(CheckLaunch, RefusesWorldsOfOneRankUnderSrun) {
  try {
    check_launch(environment_of(srun_task()), 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("srun started 4 processes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--mpi=pmix"), std::string::npos) << error.what();
  }
}

TEST(CheckLaunch, RefusesWorldsOfOneRankUnderAForeignLauncher) {
  EXPECT_THROW(check_launch(environment_of({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}), 1), Error);
  EXPECT_THROW(check_launch(environment_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), 1), Error);
}

TEST(CheckLaunch, AcceptsOneRankWhereOneWasStarted) {
  EXPECT_TRUE(
      check_launch(environment_of({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}), 1).empty());
}

TEST(CheckLaunch, SaysWhenFewerRanksRunThanWereAskedFor) {
  auto variables = srun_task();
  variables["OMPI_COMM_WORLD_SIZE"] = "3";
  const auto fewer = check_launch(environment_of(variables), 3);
  ASSERT_EQ(fewer.size(), 1U);
  EXPECT_NE(fewer[0].find("4 tasks, but 3 ranks"), std::string::npos) << fewer[0];

  const auto lost = check_launch(environment_of(srun_task()), 2);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_NE(lost[0].find("started 4 processes, but MPI sees 2"), std::string::npos) << lost[0];

  const auto alone = check_launch(environment_of({{"SLURM_JOB_ID", "9"}, {"SLURM_NTASKS", "4"}}), 1);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_NE(alone[0].find("without srun or mpirun"), std::string::npos) << alone[0];
}

TEST(Cases, C092JobArrays) {
  const auto task = [](const char* job, const char* index) {
    return environment_of({{"SLURM_JOB_ID", job}, {"SLURM_ARRAY_JOB_ID", "1234"}, {"SLURM_ARRAY_TASK_ID", index}});
  };
  const SlurmEnvironment first = task("1235", "1");
  const SlurmEnvironment last = task("1234", "2");  // its job id equals the array's
  EXPECT_EQ(first.job_name(), "1234_1");
  EXPECT_EQ(last.job_name(), "1234_2");
  EXPECT_EQ(first.folder_of_task("run"), std::filesystem::path("run") / "task-1");
  EXPECT_EQ(last.folder_of_task("run"), std::filesystem::path("run") / "task-2");
}

}  // namespace
}  // namespace lockstep
