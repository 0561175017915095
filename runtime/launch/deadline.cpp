#include "runtime/launch/deadline.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

// Asks Slurm for the end of a job. The child inherits our blocked signals, so a hanging controller is ended by KILL.
std::optional<double> ask_squeue(std::int64_t job_id) {
  const std::string command =
      text("SLURM_TIME_FORMAT=%s timeout -s KILL 10 squeue --noheader --jobs=", job_id, " --format=%e 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::array<char, 64> line = {};
  const bool answered = std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr;
  const int status = pclose(pipe);
  if (!answered || status != 0) return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(line.data(), &end);
  if (end == line.data() || seconds <= 0.0) return std::nullopt;  // "N/A", "Unknown": no limit
  return seconds;
}

}  // namespace

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double parse_time_limit(const std::string& limit) {
  static const std::regex with_days(R"((\d+)-(\d+)(?::(\d+))?(?::(\d+))?)");
  static const std::regex without_days(R"((?:(\d+):)?(\d+)(?::(\d+))?)");
  std::smatch part;
  const auto value = [&](std::size_t i) { return part[i].matched ? std::stod(part[i].str()) : 0.0; };
  double seconds = 0.0;
  if (std::regex_match(limit, part, with_days)) {
    seconds = ((value(1) * 24 + value(2)) * 60 + value(3)) * 60 + value(4);
  } else if (std::regex_match(limit, part, without_days)) {
    if (part[1].matched && part[3].matched) {
      seconds = (value(1) * 60 + value(2)) * 60 + value(3);
    } else if (part[1].matched) {
      seconds = value(1) * 60 + value(2);
    } else {
      seconds = value(2) * 60 + value(3);
    }
  }
  if (seconds <= 0.0) {
    throw Error(ErrorKind::usage, text("--time-limit \"", limit,
                                       "\" is not a time (it is spelled as for sbatch --time: minutes, "
                                       "minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds): give "
                                       "one of these, above zero"));
  }
  return seconds;
}

std::optional<double> allocation_end(const SlurmEnvironment& environment, std::optional<double> time_limit_seconds,
                                     double launched_at) {
  std::optional<double> end;
  if (environment.end_time) {
    end = static_cast<double>(*environment.end_time);
  } else if (environment.in_job()) {
    end = ask_squeue(*environment.job_id);
  }
  if (time_limit_seconds) {
    const double own = launched_at + *time_limit_seconds;
    end = end ? std::min(*end, own) : own;
  }
  return end;
}

Deadline::Deadline(std::optional<double> end_unix_seconds, double margin_seconds)
    : end_(end_unix_seconds), margin_(margin_seconds) {
  if (!(margin_seconds >= 0.0) || std::isinf(margin_seconds)) {
    throw Error(ErrorKind::usage, text("--deadline-margin ", margin_seconds,
                                       " is not a span of time (it is kept free before the allocation's end): give "
                                       "seconds, 0 or more"));
  }
}

void Deadline::observe_step(double seconds) { longest_step_ = std::max(longest_step_, seconds); }

void Deadline::observe_save(double seconds) { longest_save_ = std::max(longest_save_, seconds); }

bool Deadline::reached(double now_unix_seconds) const { return end_ && *end_ - now_unix_seconds < needed_seconds(); }

std::string Deadline::reason(double now_unix_seconds) const {
  if (!end_) return {};
  char line[200];
  std::snprintf(
      line, sizeof line,
      "the allocation ends in %.1f s, and a step (%.1f s), a save (%.1f s) and the margin (%.1f s) need %.1f s",
      *end_ - now_unix_seconds, longest_step_, longest_save_, margin_, needed_seconds());
  return line;
}

}  // namespace lockstep
