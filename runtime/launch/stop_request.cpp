#include "runtime/launch/stop_request.hpp"

#include "runtime/plan/error.hpp"

namespace lockstep {

bool StopRequest::requested() {
  if (!reason_.empty()) return true;
  if (signals_.requested()) {
    reason_ = signal_name(signals_.signal()) + " came";
    if (signals_.sender_pid() != 0) reason_ += text(" from process ", signals_.sender_pid());
  } else if (deadline_ != nullptr && deadline_->reached(unix_seconds())) {
    reason_ = deadline_->reason(unix_seconds());
  } else if (files_ != nullptr && files_->take_halt()) {
    reason_ = "the file HALT asked for it";
  }
  return !reason_.empty();
}

}  // namespace lockstep
