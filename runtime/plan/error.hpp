#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// What a failure asks of whoever launched the program; the value is the process's exit code.
enum class ErrorKind : int {
  failed = 1,          ///< the machine failed (disk, memory, a peer): a retry may help
  usage = 2,           ///< an option, a file name or a combination of them is wrong
  interrupted = 85,    ///< stopped on request, the state is saved: requeue the job
  do_not_requeue = 86  ///< the model or the data is broken: a retry fails in the same way
};

/// The one exception for what the user or the machine did. Our own bugs are asserts, never this type.
///
/// The text is worded *problem (why it is one): next act*, with the numbers, in one or two sentences.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

/// Joins its arguments into one text, as `operator<<` prints them.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.precision(17);
  (stream << ... << parts);
  return stream.str();
}

}  // namespace lockstep
