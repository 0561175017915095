#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_error.hpp"
#include "runtime/comm/transfer_pieces.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/error.hpp"
#include "tests/comm/ways.hpp"

namespace lockstep::test {
namespace {

class EveryCommunicator : public OnEveryWay {};
LOCKSTEP_ON_EVERY_WAY(EveryCommunicator);

std::byte byte_of(std::size_t source, std::size_t index) {
  return static_cast<std::byte>((source * 151 + index * 7 + index / 251 + 3) % 256);
}

std::vector<std::byte> bytes_of(std::size_t source, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = byte_of(source, i);
  return bytes;
}

TEST_P(EveryCommunicator, KnowsItsRanks) {
  const auto ranks = make(GetParam());
  EXPECT_EQ(ranks->num_ranks(), session().num_ranks());
  EXPECT_EQ(ranks->rank(), session().rank());
  EXPECT_EQ(ranks->local_rank(), session().rank()) << "all ranks of this test are on one node";
  EXPECT_FALSE(ranks->name().empty());
}

TEST_P(EveryCommunicator, BroadcastReachesEveryRankFromEveryRoot) {
  const auto ranks = make(GetParam());
  for (int root = 0; root < ranks->num_ranks(); ++root) {
    for (const std::size_t size : {0u, 1u, 7u, 999u, 1000u, 1001u, 32768u, 32769u, 100000u}) {
      const std::vector<std::byte> expected = bytes_of(static_cast<std::size_t>(root), size);
      std::vector<std::byte> bytes = ranks->rank() == root ? expected : std::vector<std::byte>(size);
      ranks->broadcast(bytes, root);
      EXPECT_TRUE(bytes == expected) << size << " bytes of rank " << root;
    }
  }
}

TEST_P(EveryCommunicator, GatherKeepsRankOrderWithUnequalCounts) {
  const auto ranks = make(GetParam());
  const auto num_ranks = static_cast<std::size_t>(ranks->num_ranks());
  // The last rank brings most, rank 0 nothing; then the other way round; then megabytes; then nothing at all.
  const std::vector<std::size_t> units = {1, 700, 40'000, 1'000'003, 0};
  for (const std::size_t unit : units) {
    if (unit > 100'000 && GetParam() == Way::mpi_in_small_pieces) continue;  // ten thousand calls
    for (const bool is_rising : {true, false}) {
      std::vector<std::size_t> counts;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        counts.push_back(unit * (is_rising ? rank : num_ranks - rank));
      }
      const auto me = static_cast<std::size_t>(ranks->rank());
      std::vector<std::byte> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
      ranks->all_gather(bytes_of(me, counts[me]), counts, all);
      std::vector<std::byte> expected;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        const std::vector<std::byte> part = bytes_of(rank, counts[rank]);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(all == expected) << "unit " << unit;
    }
  }
}

TEST_P(EveryCommunicator, BarrierWaitsForTheSlowestRank) {
  const auto ranks = make(GetParam());
  // One clock for all processes of a node; MPI's own may start with the process.
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int slowest = 0; slowest < ranks->num_ranks(); ++slowest) {
    if (ranks->rank() == slowest) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    auto released = now();
    ranks->barrier();
    const auto passed = now();
    ranks->broadcast(std::as_writable_bytes(std::span(&released, 1)), slowest);
    EXPECT_GE(passed, released);
  }
}

TEST_P(EveryCommunicator, ThousandsOfSmallCallsStayInOrder) {
  const auto ranks = make(GetParam());
  const auto num_ranks = static_cast<std::size_t>(ranks->num_ranks());
  const std::vector<std::size_t> counts(num_ranks, sizeof(std::int64_t));
  std::int64_t num_wrong = 0;
  for (Repetitions calls(*ranks, 5000); calls.next();) {
    const std::int64_t call = calls.index();
    const std::int64_t mine = call * 100 + ranks->rank();
    std::vector<std::int64_t> all(num_ranks);
    ranks->all_gather(std::as_bytes(std::span(&mine, 1)), counts, std::as_writable_bytes(std::span(all)));
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      num_wrong += all[rank] != call * 100 + static_cast<std::int64_t>(rank);
    }
    std::int64_t sent = ranks->rank() == call % ranks->num_ranks() ? call : -1;
    ranks->broadcast(std::as_writable_bytes(std::span(&sent, 1)), static_cast<int>(call % ranks->num_ranks()));
    num_wrong += sent != call;
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST_P(EveryCommunicator, TextsAreGatheredAndBroadcast) {
  const auto ranks = make(GetParam());
  const int rank = ranks->rank();
  const auto text_of = [](int of) { return std::string(static_cast<std::size_t>(of) * 3, 'x') + std::to_string(of); };
  const std::vector<std::string> texts = gather_texts(*ranks, rank == 1 ? "" : text_of(rank));
  for (int r = 0; r < ranks->num_ranks(); ++r) {
    EXPECT_EQ(texts.at(static_cast<std::size_t>(r)), r == 1 ? "" : text_of(r));
  }
  EXPECT_EQ(broadcast_text(*ranks, rank == 0 ? "from the first" : "other"), "from the first");
  const int last = ranks->num_ranks() - 1;
  EXPECT_EQ(broadcast_text(*ranks, rank == last ? "from the last" : "", last), "from the last");
}

TEST_P(EveryCommunicator, WorkThatSucceedsEverywherePassesAgreement) {
  const auto ranks = make(GetParam());
  int num_runs = 0;
  EXPECT_NO_THROW(agree(*ranks, [&] { ++num_runs; }));
  EXPECT_EQ(num_runs, 1);
}

TEST_P(EveryCommunicator, FailureOfOneRankIsThrownByAll) {
  const auto ranks = make(GetParam());
  const int last = ranks->num_ranks() - 1;
  try {
    agree(*ranks, [&] {
      if (ranks->rank() == last) throw Error(ErrorKind::usage, "no such file");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    const std::string expected = last == 0 ? "no such file" : "rank " + std::to_string(last) + ": no such file";
    EXPECT_EQ(error.what(), expected);
  }
  // The ranks are still together.
  EXPECT_EQ(broadcast_text(*ranks, ranks->rank() == 0 ? "next" : ""), "next");
}

TEST_P(EveryCommunicator, GravestFailureDecidesAndAllAreNamed) {
  const auto ranks = make(GetParam());
  const int rank = ranks->rank();
  try {
    agree(*ranks, [&] {
      if (rank == 0) throw Error(ErrorKind::do_not_requeue, "the loss is not finite");
      throw std::runtime_error("disk full");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::do_not_requeue);
    const std::string expected[] = {"the loss is not finite", "rank 0: the loss is not finite; rank 1: disk full",
                                    "rank 0: the loss is not finite; ranks 1, 2: disk full",
                                    "rank 0: the loss is not finite; ranks 1, 2, 3: disk full"};
    ASSERT_LE(ranks->num_ranks(), 4);
    EXPECT_EQ(error.what(), expected[ranks->num_ranks() - 1]);
  }
}

TEST(Factory, ChoosesTheFastestWayThatTheRanksAllow) {
  EXPECT_EQ(make()->name(), session().num_ranks() == 1 ? "one process" : "shared memory");
  EXPECT_EQ(make(CommunicatorKind::mpi)->name(), "MPI");
  EXPECT_EQ(make(CommunicatorKind::shared_memory)->name(), "shared memory");
}

TEST(Session, FailedMpiCallNamesItselfAndItsReason) {
  try {
    // Every rank asks for a rank that is not there.
    char byte = 0;
    check_mpi(MPI_Send(&byte, 1, MPI_CHAR, session().num_ranks() + 5, 0, session().comm()), "MPI_Send");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_NE(std::string(error.what()).find("MPI_Send failed"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank"), std::string::npos) << error.what();
  }
}

TEST(Session, SecondSessionSharesMpiAndLeavesItRunning) {
  {
    const MpiSession inner;
    EXPECT_EQ(inner.num_ranks(), session().num_ranks());
    EXPECT_NE(inner.comm(), session().comm());
  }
  int is_finalized = 1;
  MPI_Finalized(&is_finalized);
  EXPECT_EQ(is_finalized, 0);
}

// Reported as: counts narrowed silently, part of the buffer not reduced; misplaced parentheses in the number of
// pieces.
TEST(Cases, C105MoreElementsThanAnInt) {
  using Pieces = std::vector<std::int64_t>;
  EXPECT_EQ(transfer_pieces(0), Pieces{});
  EXPECT_EQ(transfer_pieces(1), Pieces{1});
  EXPECT_EQ(transfer_pieces(2147483647), Pieces{2147483647});
  EXPECT_EQ(transfer_pieces(2147483648), (Pieces{2147483647, 1}));
  EXPECT_EQ(transfer_pieces(4294967294), (Pieces{2147483647, 2147483647}));
  EXPECT_EQ(transfer_pieces(4294967295), (Pieces{2147483647, 2147483647, 1}));
  EXPECT_EQ(transfer_pieces(3218569051), (Pieces{2147483647, 1071085404}));
  EXPECT_EQ(transfer_pieces(10, 4), (Pieces{4, 4, 2}));
  EXPECT_THROW(transfer_pieces(-1), std::logic_error);
  EXPECT_THROW(transfer_pieces(1, 0), std::logic_error);
}

}  // namespace
}  // namespace lockstep::test
