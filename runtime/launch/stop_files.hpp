#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// The files by which people and scripts talk to a run, in its checkpoint folder:
///
///   HALT   someone asks the run to save and stop after the current step; taken away when seen
///   SAVE   someone asks for a checkpoint now; taken away when seen
///   DONE   the run says that it is complete, for scripts that cannot trust a launcher's exit status
///
/// Kept by rank 0 alone; all calls are local. A folder on a parallel file system is asked at most once in
/// `poll_seconds`, however often take_halt() and take_save() are called.
class StopFiles {
 public:
  explicit StopFiles(std::filesystem::path folder, double poll_seconds = 0.5);

  bool take_halt();  ///< true once for each HALT
  bool take_save();  ///< true once for each SAVE

  /// Says that the run is complete, with one line about it. Replaces an older DONE whole.
  void mark_done(const std::string& line);

  /// Takes the mark away: the run goes on (more epochs were asked for).
  void clear_done();

  bool done() const;

 private:
  struct Request {
    std::filesystem::path path;
    double next_poll = 0.0;  ///< steady seconds
    bool stuck = false;      ///< obeyed, but could not be removed: does not count again
  };
  bool take(Request& request);

  std::filesystem::path folder_;
  double poll_seconds_;
  Request halt_;
  Request save_;
};

}  // namespace lockstep
