#include "runtime/launch/stop_signals.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

const std::vector<int> usual = {SIGTERM, SIGUSR1, SIGUSR2};

// Polls; the signal thread needs a moment. False after ten seconds.
bool comes_true(const StopSignals& signals) {
  for (int i = 0; i < 10000 && !signals.requested(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return signals.requested();
}

// Runs `body` in a child process and returns its wait status.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(StopSignals, NothingIsRequestedAtFirst) {
  const StopSignals signals(usual);
  EXPECT_FALSE(signals.requested());
  EXPECT_EQ(signals.signal(), 0);
}

TEST(StopSignals, EachChosenSignalIsTaken) {
  for (const int signal : usual) {
    const StopSignals signals(usual);
    kill(getpid(), signal);
    ASSERT_TRUE(comes_true(signals)) << signal_name(signal);
    EXPECT_EQ(signals.signal(), signal);
    EXPECT_EQ(signals.sender_pid(), getpid());
    EXPECT_GT(signals.when(), 1.7e9);
  }
}

TEST(StopSignals, SecondSignalChangesNothing) {
  const StopSignals signals(usual);
  kill(getpid(), SIGUSR1);
  ASSERT_TRUE(comes_true(signals));
  const double when = signals.when();
  for (int i = 0; i < 100; ++i) {
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGUSR2);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(signals.signal(), SIGUSR1);
  EXPECT_EQ(signals.when(), when);
}

TEST(StopSignals, ContinueIsIgnored) {
  const StopSignals signals(usual);
  kill(getpid(), SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(signals.requested());
}

TEST(StopSignals, SignalsPendingBeforeItExistedCount) {
  const int status = in_child([] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    kill(getpid(), SIGUSR1);
    const StopSignals signals(usual);
    return comes_true(signals) ? 7 : 1;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(StopSignals, IgnoredSignalsOfTheParentAreTaken) {
  const int status = in_child([] {
    std::signal(SIGUSR1, SIG_IGN);  // as after nohup or a shell's trap ''
    const StopSignals signals(usual);
    kill(getpid(), SIGUSR1);
    return comes_true(signals) ? 7 : 1;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(StopSignals, LateSignalDoesNotChangeTheExitCode) {
  const int status = in_child([] {
    {
      const StopSignals signals(usual);
      kill(getpid(), SIGTERM);
      if (!comes_true(signals)) return 1;
    }
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGUSR1);
    return 85;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 85);
}

TEST(StopSignals, UnchosenSignalKeepsItsMeaning) {
  const int status = in_child([] {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);  // earlier tests left theirs blocked
    const StopSignals signals({SIGUSR1});
    kill(getpid(), SIGUSR2);
    std::this_thread::sleep_for(std::chrono::seconds(10));
    return 0;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGUSR2);
}

TEST(StopSignals, ThreadsMadeLaterDoNotTakeThem) {
  const int status = in_child([] {
    const StopSignals signals(usual);
    std::thread other([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    for (int i = 0; i < 50; ++i) kill(getpid(), SIGTERM);
    other.join();
    return comes_true(signals) ? 7 : 1;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(StopSignals, NoneMeansNone) {
  const StopSignals signals(parse_stop_signals("none"));
  EXPECT_FALSE(signals.requested());
}

TEST(StopSignalNames, AreReadInEverySpelling) {
  EXPECT_EQ(parse_stop_signals("TERM,USR1,USR2"), usual);
  EXPECT_EQ(parse_stop_signals("sigterm,SIGUSR1,usr2,TERM"), usual);
  EXPECT_EQ(parse_stop_signals("HUP"), std::vector<int>{SIGHUP});
  EXPECT_EQ(signal_name(SIGUSR1), "SIGUSR1");
}

TEST(StopSignalNames, RefusesWhatCannotAskForAStop) {
  for (const char* names : {"KILL", "TERM,CONT", "SEGV", "9", "", ",", "TERM;USR1"}) {
    try {
      parse_stop_signals(names);
      ADD_FAILURE() << names;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << names;
    }
  }
}

}  // namespace
}  // namespace lockstep
