#include "runtime/launch/slurm_environment.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace lockstep {
namespace {

std::string word(const SlurmEnvironment::Lookup& lookup, const char* name) {
  const char* value = lookup(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::optional<std::int64_t> number(const SlurmEnvironment::Lookup& lookup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = lookup(name);
    if (value == nullptr) continue;
    const char* end = value + std::strlen(value);
    std::int64_t parsed = 0;
    const auto result = std::from_chars(value, end, parsed);
    if (result.ec == std::errc() && result.ptr == end && parsed >= 0) return parsed;
  }
  return std::nullopt;
}

// Who started this process, and what it says about it. mpirun's ranks also carry the SLURM_* variables of the batch
// shell, or of the daemon that started them, so mpirun is asked first.
void read_launcher(SlurmEnvironment& facts, const SlurmEnvironment::Lookup& lookup) {
  if (number(lookup, {"OMPI_COMM_WORLD_SIZE"})) {
    facts.launcher = "mpirun";
    facts.launched_ranks = number(lookup, {"OMPI_COMM_WORLD_SIZE"});
    facts.launch_rank = number(lookup, {"OMPI_COMM_WORLD_RANK"});
  } else if (number(lookup, {"PMI_SIZE"})) {
    facts.launcher = "another launcher";
    facts.launched_ranks = number(lookup, {"PMI_SIZE"});
    facts.launch_rank = number(lookup, {"PMI_RANK"});
  } else if (lookup("SLURM_STEP_ID") != nullptr && lookup("SLURM_PROCID") != nullptr) {
    facts.launcher = "srun";
    facts.launched_ranks = number(lookup, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
    facts.launch_rank = number(lookup, {"SLURM_PROCID"});
  } else {
    facts.launcher = "none";
  }
}

}  // namespace

SlurmEnvironment SlurmEnvironment::read(const Lookup& lookup) {
  SlurmEnvironment facts;
  facts.job_id = number(lookup, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (facts.job_id) {
    facts.array_job_id = number(lookup, {"SLURM_ARRAY_JOB_ID"});
    facts.array_task_id = number(lookup, {"SLURM_ARRAY_TASK_ID"});
    facts.restart_count = number(lookup, {"SLURM_RESTART_COUNT"}).value_or(0);
    facts.num_nodes = number(lookup, {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
    facts.num_tasks = number(lookup, {"SLURM_NTASKS", "SLURM_NPROCS"});
    facts.end_time = number(lookup, {"SLURM_JOB_END_TIME"});
    facts.nodes = word(lookup, "SLURM_JOB_NODELIST");
    facts.node_name = word(lookup, "SLURMD_NODENAME");
    facts.partition = word(lookup, "SLURM_JOB_PARTITION");
    facts.cluster = word(lookup, "SLURM_CLUSTER_NAME");
  }
  read_launcher(facts, lookup);
  return facts;
}

SlurmEnvironment SlurmEnvironment::read() {
  return read([](const char* name) -> const char* { return std::getenv(name); });
}

std::string SlurmEnvironment::job_name() const {
  if (!job_id) return {};
  if (array_job_id && array_task_id) return text(*array_job_id, "_", *array_task_id);
  return text(*job_id);
}

std::filesystem::path SlurmEnvironment::folder_of_task(const std::filesystem::path& folder) const {
  if (!array_job_id || !array_task_id) return folder;
  return folder / text("task-", *array_task_id);
}

std::string SlurmEnvironment::describe() const {
  if (!job_id) return {};
  std::string line = text("Slurm job ", job_name());
  if (array_task_id) line += text(" (job id ", *job_id, ")");
  if (!partition.empty()) line += text(", partition ", partition);
  if (num_nodes) line += text(", ", *num_nodes, *num_nodes == 1 ? " node" : " nodes");
  if (!nodes.empty()) line += text(" (", nodes, ")");
  line += text(", started by ", launcher == "none" ? "no launcher" : launcher);
  line += restart_count == 0 ? ", first launch" : text(", restart ", restart_count);
  return line;
}

AttributeGroup SlurmEnvironment::facts() const {
  AttributeGroup group;
  group["launcher"] = launcher;
  if (!job_id) return group;
  group["slurm_job"] = job_name();
  group["slurm_job_id"] = *job_id;
  group["slurm_restart_count"] = restart_count;
  group["slurm_nodes"] = nodes;
  group["slurm_partition"] = partition;
  group["slurm_cluster"] = cluster;
  return group;
}

std::vector<std::string> check_launch(const SlurmEnvironment& environment, int num_ranks) {
  const std::int64_t launched = environment.launched_ranks.value_or(num_ranks);
  if (num_ranks == 1 && launched > 1) {
    const bool by_srun = environment.launcher == "srun";
    throw Error(ErrorKind::usage,
                text(environment.launcher, " started ", launched,
                     " processes, and each of them is alone in an MPI world of one rank (",
                     by_srun ? "srun and the MPI library did not find a common PMI): launch with srun --mpi=pmix; "
                               "`srun --mpi=list` shows what this site has, and mpirun works without it"
                             : "the launcher belongs to another MPI library than the one this program is linked "
                               "with): launch with the mpirun of that library"));
  }
  std::vector<std::string> warnings;
  if (num_ranks < launched) {
    warnings.push_back(text("the launcher started ", launched, " processes, but MPI sees ", num_ranks,
                            " ranks: the others take no part; look at the launch command"));
  } else if (environment.num_tasks && environment.launcher != "none" && num_ranks < *environment.num_tasks) {
    warnings.push_back(
        text("the job asked Slurm for ", *environment.num_tasks, " tasks, but ", num_ranks,
             num_ranks == 1 ? " rank runs" : " ranks run",
             ": the rest of the allocation is idle; drop -n from the launch command, or ask for less"));
  }
  if (environment.launcher == "none" && environment.num_tasks && *environment.num_tasks > 1) {
    warnings.push_back(text("the job asked Slurm for ", *environment.num_tasks,
                            " tasks, but the program was started without srun or mpirun and runs on one rank: "
                            "put srun --mpi=pmix before it"));
  }
  return warnings;
}

}  // namespace lockstep
