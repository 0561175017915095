#pragma once

#include <string>

#include "runtime/launch/deadline.hpp"
#include "runtime/launch/stop_files.hpp"
#include "runtime/launch/stop_signals.hpp"

namespace lockstep {

/// Every reason for which a run stops before its end, behind one question.
///
/// Each rank has one and asks it at its step boundaries; the answer rides on the step's scalar collective, so one
/// rank's yes stops all of them after the same step. A signal counts on whichever rank it comes; the deadline and
/// the file HALT are looked at where they were given, which is rank 0. Once true it stays true. Local calls.
///
/// `signals`, `deadline` and `files` must outlive it; the last two may be null.
class StopRequest {
 public:
  StopRequest(const StopSignals& signals, const Deadline* deadline, StopFiles* files)
      : signals_(signals), deadline_(deadline), files_(files) {}

  bool requested();

  /// Why, in words for the log; empty while nothing was requested on this rank.
  const std::string& reason() const { return reason_; }

 private:
  const StopSignals& signals_;
  const Deadline* deadline_;
  StopFiles* files_;
  std::string reason_;
};

}  // namespace lockstep
