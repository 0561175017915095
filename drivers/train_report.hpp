#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "drivers/metrics_file.hpp"
#include "runtime/plan/training_plan.hpp"
#include "runtime/train/trainer.hpp"

namespace lockstep {

/// How progress is shown: as a line that is drawn anew, or as one line every some steps.
enum class ProgressStyle { bar, lines };

/// "bar", "lines", or "auto": a bar where the standard output is a terminal. A launcher's own pseudo-terminal, which
/// has no width, is none.
ProgressStyle progress_style_of(const std::string& name);

/// What people and scripts see of a run: lines, a progress line on a terminal, metrics.jsonl. Lives on rank 0 alone.
class TrainReport {
 public:
  /// An existing metrics file goes on. Throws Error when it cannot be written, or is not this run's.
  TrainReport(const MetricsTarget& metrics, std::int64_t log_steps, ProgressStyle style);

  /// One line, on its own even when a progress line is on the terminal.
  void say(const std::string& line);

  void step(const StepReport& report, const TrainingPlan& plan, const LossScaler& scaler);
  void evaluation(const std::map<std::string, double>& results, const Progress& progress);

  /// Steps of earlier launches that were lost.
  std::int64_t num_metrics_dropped() const { return metrics_ ? metrics_->num_dropped() : 0; }

  /// That the steps of earlier launches took, lost ones aside.
  double kept_seconds() const { return metrics_ ? metrics_->kept_seconds() : 0.0; }

 private:
  std::string progress_line(const StepReport& report, const TrainingPlan& plan, const LossScaler& scaler) const;
  void write_metrics(nlohmann::ordered_json line);

  std::int64_t log_steps_;
  ProgressStyle style_;
  bool line_is_open_ = false;
  std::optional<MetricsFile> metrics_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_drawn_ = start_;
  std::int64_t samples_ = 0;
  double samples_per_second_ = 0.0;
};

/// The resolved plan as lines for the start of the log.
std::string plan_text(const TrainingPlan& plan);

/// "1:02:03" or "4.2 s".
std::string duration_text(double seconds);

}  // namespace lockstep
