#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep {

/// Whose the lines are that a launch finds in its metrics file.
enum class EarlierLines {
  own,      ///< this run's: the file lies in its checkpoint folder
  marked,   ///< this run's where they name its folder
  foreign,  ///< another's: this run has just begun
};

/// Where a launch writes its metrics.
struct MetricsTarget {
  std::string file;  ///< empty: none are written
  std::string run;   ///< the run's folder, which marks its lines in a file elsewhere; empty: lines are not marked
  EarlierLines earlier = EarlierLines::own;
  std::int64_t steps_taken = 0;  ///< lines of later steps belong to steps that were lost and are taken again
};

/// metrics.jsonl: one JSON object a line, a single series over all launches of a run.
///
/// A file of anything else is never changed: it is refused. What is cut off is this run's own lost steps, and a last
/// line that its writer could not end. Local; lives on rank 0 alone.
class MetricsFile {
 public:
  /// Opens the file, or makes it. Throws Error(usage) when it cannot be written, is no metrics file, or is another
  /// run's.
  explicit MetricsFile(MetricsTarget target);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Appends a line, whole or not at all. A full disk does not end the run: returns what to tell when an outage
  /// begins and when it is over.
  std::optional<std::string> append(nlohmann::ordered_json line);

  std::int64_t num_dropped() const { return num_dropped_; }  ///< lost steps
  double kept_seconds() const { return kept_seconds_; }      ///< that the steps of earlier launches took

 private:
  void read_earlier(std::int64_t num_bytes);

  MetricsTarget target_;
  int file_ = -1;
  bool is_regular_ = false;       ///< no pipe, terminal or device
  std::int64_t num_missing_ = 0;  ///< lines of the outage that lasts
  std::int64_t num_dropped_ = 0;
  double kept_seconds_ = 0.0;
};

}  // namespace lockstep
