#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {

/// The signals a `--stop-signals` text names: "TERM,USR1,USR2", with or without "SIG", or "none".
/// Throws Error(usage) for a name that cannot be waited for or that has another meaning.
std::vector<int> parse_stop_signals(const std::string& names);

/// "SIGTERM" for 15, and so on; "signal 99" for one without a name.
std::string signal_name(int signal);

/// Takes the signals that ask a run to stop, and remembers the first of them. Nothing happens in a signal handler.
///
/// The constructor blocks the signals in the calling thread, so that every thread made later inherits the mask, and
/// starts one thread that waits for them. So it must be made **first in main**, before MPI_Init and before any
/// library starts a thread: one thread with the signal unblocked is enough for the process to be killed by it.
/// Signals that were already pending (`env --block-signal=TERM,USR1,USR2 program`) count: none is lost while
/// the libraries are being loaded.
///
/// Slurm sends CONT together with every warning: CONT is left alone, its default does nothing to a running process.
/// TERM often comes twice: a second signal changes nothing.
///
/// The destructor ends the thread. The signals stay blocked until the process ends, so that a late one cannot turn
/// exit code 85 into "killed by signal 15". Child processes inherit the mask. At most one such object lives at a
/// time.
class StopSignals {
 public:
  explicit StopSignals(const std::vector<int>& signals);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// True once a signal came. Costs one load: poll it as often as you like, from any thread.
  bool requested() const noexcept { return signal_.load(std::memory_order_acquire) != 0; }

  int signal() const noexcept { return signal_.load(std::memory_order_acquire); }  ///< the first one; 0 = none
  int sender_pid() const noexcept { return sender_pid_.load(); }  ///< who sent it; 0 = the kernel, or another node
  double when() const noexcept { return when_unix_seconds_.load(); }  ///< when it was taken; 0 = none came

 private:
  void wait_for_signals();

  std::vector<int> signals_;
  std::atomic<int> signal_{0};
  std::atomic<int> sender_pid_{0};
  std::atomic<double> when_unix_seconds_{0.0};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace lockstep
