// The main function of test programs that run on several ranks: every rank runs every test, rank 0 shows the
// progress, failures are shown by the rank that had them, and all ranks end with the same exit code.

#include "tests/support/mpi_main.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/plan/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>

// What MPI keeps until the process ends is not ours to free; the names are those of its libraries and plug-ins,
// and of what plug-ins call that it loads, finds unfit and unloads at once (they have no name any more; we call
// neither).
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi\nleak:libopen-rte\nleak:libopen-pal\nleak:libpmix\nleak:mca_\nleak:libevent\nleak:libhwloc\n"
         "leak:libucp\nleak:libucs\nleak:libfabric\n"
         "leak:strdup\nleak:vasprintf\n";
}

// Nor is what it allocates while it starts, tries its plug-ins and unloads most of them.
using LeaksAreNotOurs = __lsan::ScopedDisabler;

// MPI_Finalize unloads the others, and with them their names: leaks are looked for before.
static void look_for_leaks() { __lsan_do_leak_check(); }
#else
struct LeaksAreNotOurs {
  LeaksAreNotOurs() {}
};
static void look_for_leaks() {}
#endif

namespace lockstep::test {
namespace {

const MpiSession* running_session = nullptr;

/// Shows a failure with the rank's number, in one piece, so that the lines of several ranks do not mix.
class RankFailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit RankFailurePrinter(int rank) : rank_(rank) {}

  void OnTestStart(const testing::TestInfo& test) override {
    test_name_ = std::string(test.test_suite_name()) + '.' + test.name();
  }

  /// GoogleTest holds its lock here, so no other part of it may be asked.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ostringstream lines;
    lines << "[rank " << rank_ << "] " << (result.file_name() != nullptr ? result.file_name() : "unknown file") << ':'
          << result.line_number() << ": Failure in " << test_name_ << '\n'
          << result.message() << '\n';
    std::cerr << lines.str() << std::flush;
  }

 private:
  int rank_;
  std::string test_name_;
};

void show_failures_of(int rank) {
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    testing::GTEST_FLAG(output) = "";  // one rank writes the report
  }
  listeners.Append(new RankFailurePrinter(rank));
}

std::unique_ptr<const MpiSession> start_session() {
  const LeaksAreNotOurs while_mpi_starts;
  return std::make_unique<const MpiSession>();
}

int run_on_all_ranks() {
  const std::unique_ptr<const MpiSession> session = start_session();
  running_session = session.get();
  show_failures_of(session->rank());
  int exit_code = RUN_ALL_TESTS();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &exit_code, 1, MPI_INT, MPI_MAX, session->comm()), "MPI_Allreduce");
  running_session = nullptr;
  look_for_leaks();
  return exit_code;
}

}  // namespace

const MpiSession& session() { return *running_session; }

std::unique_ptr<Communicator> make(CommunicatorKind kind, Reporter report) {
  if (!report) report = [](const std::string&) {};
  return make_communicator(session(), kind, std::move(report));
}

}  // namespace lockstep::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Tests share their processors with other tests: a rank of Open MPI that waits gives way instead of spinning.
  ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  try {
    return lockstep::test::run_on_all_ranks();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
