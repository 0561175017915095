#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/comm/shared_barrier.hpp"
#include "runtime/comm/shared_segment.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// Takes a line for the log.
using Reporter = std::function<void(const std::string& line)>;

/// The ranks of a session that runs on one node, over memory they share. MPI makes the memory known; after that no
/// call here enters it, except for exchanges that found no room (below).
///
/// The session must outlive it. Construction and destruction are **collective**; construction throws the same Error
/// on all ranks where they cannot share memory. One thread at a time may use it.
class SharedMemoryCommunicator final : public Communicator {
 public:
  /// `report` is called on rank 0 only. `max_exchange_bytes` bounds each exchange's shared memory.
  SharedMemoryCommunicator(const MpiSession& session, Reporter report,
                           std::size_t max_exchange_bytes = SharedSegment::unlimited);

  int rank() const override { return mpi_.rank(); }
  int num_ranks() const override { return mpi_.num_ranks(); }
  int local_rank() const override { return mpi_.local_rank(); }
  std::string name() const override { return "shared memory"; }

  void barrier() override { barrier_.arrive_and_wait(); }
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override;

  /// Where the memory cannot be had, says so through the reporter and makes an exchange over MPI: the same bits.
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override;

 private:
  /// Where rank `rank` puts its next piece; it may be rewritten two pieces later.
  std::byte* mailbox(int rank) const;

  MpiCommunicator mpi_;
  Reporter report_;
  std::size_t max_exchange_bytes_;
  SharedSegment control_;  ///< the barrier's words, then two mailboxes for each rank
  SharedBarrier barrier_;
  std::size_t num_pieces_sent_ = 0;  ///< the same on all ranks
};

}  // namespace lockstep
