#include "runtime/launch/stop_signals.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <sstream>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

// Those that people and schedulers send to ask for something. KILL and STOP cannot be waited for; SEGV and its kin
// are bugs; CONT, CHLD and PIPE have other uses.
const std::vector<std::pair<std::string, int>> stop_signal_names = {
    {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"INT", SIGINT}, {"XCPU", SIGXCPU}};

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<int> parse_stop_signals(const std::string& names) {
  std::vector<int> signals;
  if (names == "none") return signals;
  std::istringstream stream(names);
  std::string name;
  while (std::getline(stream, name, ',')) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    if (name.rfind("SIG", 0) == 0) name.erase(0, 3);
    const auto found = std::find_if(stop_signal_names.begin(), stop_signal_names.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found == stop_signal_names.end()) {
      throw Error(ErrorKind::usage,
                  text("--stop-signals: \"", name,
                       "\" cannot ask a run to stop (known are TERM, USR1, USR2, HUP, INT, XCPU, or "
                       "\"none\"): give some of these, separated by commas"));
    }
    if (std::count(signals.begin(), signals.end(), found->second) == 0) signals.push_back(found->second);
  }
  if (signals.empty()) {
    throw Error(ErrorKind::usage,
                "--stop-signals is empty (a run without any could only be killed): name some, as in "
                "TERM,USR1,USR2, or say \"none\"");
  }
  return signals;
}

std::string signal_name(int signal) {
  for (const auto& [name, number] : stop_signal_names) {
    if (number == signal) return "SIG" + name;
  }
  return text("signal ", signal);
}

StopSignals::StopSignals(const std::vector<int>& signals) : signals_(signals) {
  if (signals_.empty()) return;
  // The thread starts with everything blocked: no other library's handler ever runs on it.
  sigset_t everything;
  sigset_t before;
  sigfillset(&everything);
  pthread_sigmask(SIG_BLOCK, &everything, &before);
  thread_ = std::thread([this] { wait_for_signals(); });
  for (const int signal : signals_) sigaddset(&before, signal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StopSignals::~StopSignals() {
  if (!thread_.joinable()) return;
  ending_.store(true);
  pthread_kill(thread_.native_handle(), signals_.front());  // wakes the thread and nobody else
  thread_.join();
  // What still comes in now is nobody's business: the run has ended.
  const sigset_t set = set_of(signals_);
  const timespec at_once = {0, 0};
  while (sigtimedwait(&set, nullptr, &at_once) > 0) {
  }
}

void StopSignals::wait_for_signals() {
  const sigset_t set = set_of(signals_);
  for (;;) {
    siginfo_t info = {};
    const int signal = sigwaitinfo(&set, &info);
    if (ending_.load()) return;
    if (signal < 0 || requested()) continue;  // interrupted by a debugger, or a later signal
    sender_pid_.store(info.si_code <= 0 ? static_cast<int>(info.si_pid) : 0);
    when_unix_seconds_.store(unix_now());
    signal_.store(signal, std::memory_order_release);
  }
}

}  // namespace lockstep
