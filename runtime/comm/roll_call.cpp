#include "runtime/comm/roll_call.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr int roll_call_tag = 2;
constexpr double seconds_between_looks = 1e-3;

using Letter = std::array<std::int64_t, 2>;

/// This rank's letter, and those it waits for.
struct Post {
  Letter mine = {};
  std::vector<Letter> theirs;
  std::vector<MPI_Request> sends;
  std::vector<MPI_Request> receives;  ///< by rank; null for oneself
};

/// MPI may still read what was not delivered when the run ends: it is kept until then.
std::vector<std::unique_ptr<Post>>& undelivered() {
  static std::vector<std::unique_ptr<Post>> posts;
  return posts;
}

bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  return done != 0;
}

/// Whether the letter came; one that did not is no longer waited for.
bool came(MPI_Request& request) {
  if (request == MPI_REQUEST_NULL) return true;
  check_mpi(MPI_Cancel(&request), "MPI_Cancel");
  MPI_Status status;
  check_mpi(MPI_Wait(&request, &status), "MPI_Wait");
  int was_cancelled = 0;
  check_mpi(MPI_Test_cancelled(&status, &was_cancelled), "MPI_Test_cancelled");
  return was_cancelled == 0;
}

}  // namespace

WaitClock WaitClock::steady() {
  return {[] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); },
          [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }};
}

std::string name_of(const Operation& operation) {
  constexpr std::array names = {"connecting the devices", "sum of the gradients", "exchange of the weights",
                                "agreement of the hosts"};
  return text("operation ", operation.number, " (", names[static_cast<std::size_t>(operation.kind)], ")");
}

bool RollCall::is_called() const {
  int has_message = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, roll_call_tag, comm_, &has_message, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return has_message != 0;
}

std::vector<std::optional<Operation>> RollCall::hold(const Operation& mine, double grace_seconds,
                                                     const WaitClock& clock) {
  int num_ranks = 0;
  int rank = 0;
  check_mpi(MPI_Comm_size(comm_, &num_ranks), "MPI_Comm_size");
  check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  auto post = std::make_unique<Post>();
  post->mine = {mine.number, static_cast<std::int64_t>(mine.kind)};
  post->theirs.resize(static_cast<std::size_t>(num_ranks));
  post->receives.assign(post->theirs.size(), MPI_REQUEST_NULL);
  post->sends.assign(post->theirs.size(), MPI_REQUEST_NULL);
  for (int other = 0; other < num_ranks; ++other) {
    if (other == rank) continue;
    const auto place = static_cast<std::size_t>(other);
    check_mpi(
        MPI_Irecv(post->theirs[place].data(), 2, MPI_INT64_T, other, roll_call_tag, comm_, &post->receives[place]),
        "MPI_Irecv");
    check_mpi(MPI_Isend(post->mine.data(), 2, MPI_INT64_T, other, roll_call_tag, comm_, &post->sends[place]),
              "MPI_Isend");
  }
  const double start = clock.seconds();
  while (!all_done(post->receives) && clock.seconds() - start < grace_seconds) clock.sleep(seconds_between_looks);

  std::vector<std::optional<Operation>> answers(post->theirs.size());
  for (std::size_t other = 0; other < answers.size(); ++other) {
    if (!came(post->receives[other])) continue;
    const Letter& letter = post->theirs[other];
    answers[other] = Operation{letter[0], static_cast<OperationKind>(letter[1])};
  }
  answers[static_cast<std::size_t>(rank)] = mine;
  if (!all_done(post->sends)) undelivered().push_back(std::move(post));
  return answers;
}

std::string describe_absence(const std::vector<std::optional<Operation>>& answers, const Operation& mine) {
  std::vector<int> silent;
  std::string elsewhere;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank]) {
      silent.push_back(static_cast<int>(rank));
    } else if (*answers[rank] != mine) {
      elsewhere += text(elsewhere.empty() ? "" : ", ", "rank ", rank, " is at ", name_of(*answers[rank]));
    }
  }
  if (silent.empty() && elsewhere.empty()) return {};
  std::string absence = text("the ranks did not all come to ", name_of(mine));
  if (!elsewhere.empty()) absence += ": " + elsewhere;
  if (silent.empty()) return absence;
  if (elsewhere.empty()) {
    return text(name_ranks(silent), " did not come to ", name_of(mine), " and ", silent.size() == 1 ? "does" : "do",
                " not answer");
  }
  return text(absence, "; ", name_ranks(silent), silent.size() == 1 ? " does" : " do", " not answer");
}

}  // namespace lockstep
