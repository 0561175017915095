#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// What Slurm and the MPI launcher say about this process, read once from the environment **before MPI_Init** (MPI
/// libraries add variables of their own). A missing or unreadable number is absent, never zero.
struct SlurmEnvironment {
  std::optional<std::int64_t> job_id;
  std::optional<std::int64_t> array_job_id;  ///< the whole array's id; one of its tasks has it as job_id, too
  std::optional<std::int64_t> array_task_id;
  std::int64_t restart_count = 0;  ///< how often this job was requeued
  std::optional<std::int64_t> num_nodes;
  std::optional<std::int64_t> num_tasks;  ///< what the job asked for
  std::optional<std::int64_t> end_time;   ///< unix seconds at which the allocation ends
  std::string nodes;                      ///< "n[1-2]"
  std::string node_name;
  std::string partition;
  std::string cluster;

  std::string launcher;                        ///< "srun", "mpirun", "another launcher" or "none"
  std::optional<std::int64_t> launched_ranks;  ///< how many processes the launcher says it started
  std::optional<std::int64_t> launch_rank;     ///< which of them this is

  using Lookup = std::function<const char*(const char*)>;

  /// Reads the variables through `lookup`; the process's own by default.
  static SlurmEnvironment read(const Lookup& lookup);
  static SlurmEnvironment read();

  bool in_job() const { return job_id.has_value(); }

  /// The name under which *this* job is requeued or cancelled: "1234", and "1234_1" for a task of an array, whose
  /// bare number would mean all tasks. Empty outside Slurm.
  std::string job_name() const;

  /// The checkpoint folder of this job: `folder` itself, or a folder of its own within it for a task of an array.
  std::filesystem::path folder_of_task(const std::filesystem::path& folder) const;

  /// One line for the start of the log; empty outside Slurm.
  std::string describe() const;

  /// The same facts for the checkpoint's table of launches.
  AttributeGroup facts() const;
};

/// Compares what the launcher started with what MPI sees. Local; the same answer on every rank.
/// Throws Error(usage) when the processes did not find each other: each is alone in a world of one rank, and all
/// would write the same files. Returns what looks unintended, one sentence each, for the log.
std::vector<std::string> check_launch(const SlurmEnvironment& environment, int num_ranks);

}  // namespace lockstep
