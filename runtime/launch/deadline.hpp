#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/launch/slurm_environment.hpp"

namespace lockstep {

/// Seconds since 1970, as Slurm counts; not a steady clock, because the allocation's end is given on this one.
double unix_seconds();

/// The seconds of a time limit in Slurm's spellings: "90" (minutes), "minutes:seconds", "hours:minutes:seconds",
/// "days-hours", "days-hours:minutes", "days-hours:minutes:seconds". Throws Error(usage) for anything else.
double parse_time_limit(const std::string& limit);

/// When the allocation ends, in unix seconds: what Slurm says about the job (SLURM_JOB_END_TIME, else squeue where it
/// is at hand), or `launched_at` plus the `--time-limit` where one is given; the earlier of the two. Nothing when
/// neither is known. May start a child process: call it on one rank, **before MPI_Init**.
std::optional<double> allocation_end(const SlurmEnvironment& environment, std::optional<double> time_limit_seconds,
                                     double launched_at);

/// Decides when a run must stop by itself so that its last save still fits into the allocation: as soon as less is
/// left than the longest step and the longest save seen so far, and a margin.
///
/// A pure rule: it reads no clock. Kept by rank 0 alone, whose answer the other ranks get with the step's scalar
/// collective. Without an end it never stops.
class Deadline {
 public:
  Deadline(std::optional<double> end_unix_seconds, double margin_seconds);

  void observe_step(double seconds);
  void observe_save(double seconds);

  std::optional<double> end() const { return end_; }

  /// What must be left at a step's end for another step to be begun.
  double needed_seconds() const { return longest_step_ + longest_save_ + margin_; }

  bool reached(double now_unix_seconds) const;

  /// Why reached() says so, in numbers, for the log.
  std::string reason(double now_unix_seconds) const;

 private:
  std::optional<double> end_;
  double margin_;
  double longest_step_ = 0.0;
  double longest_save_ = 0.0;
};

}  // namespace lockstep
