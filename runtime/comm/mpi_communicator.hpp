#pragma once

#include <mpi.h>

#include "runtime/comm/mpi_session.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// The ranks of a session over plain MPI, on one node or many.
///
/// Works on a duplicate of the session's communicator; the session must outlive it. Construction and destruction are
/// **collective**. One thread at a time may use it. No call hands MPI more than `max_transfer_bytes` at once: counts
/// are ints, and transfers beyond 2 GiB are where MPI libraries and networks have their bugs.
class MpiCommunicator final : public Communicator {
 public:
  static constexpr std::int64_t default_max_transfer_bytes = std::int64_t{1} << 30;

  explicit MpiCommunicator(const MpiSession& session, std::int64_t max_transfer_bytes = default_max_transfer_bytes);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return session_.rank(); }
  int num_ranks() const override { return session_.num_ranks(); }
  int local_rank() const override { return session_.local_rank(); }
  std::string name() const override { return "MPI"; }

  void barrier() override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override;
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override;

  /// As all_gather(), where each rank's bytes already lie in their place in `all`.
  void all_gather_in_place(std::span<const std::size_t> counts, std::span<std::byte> all);

  MPI_Comm comm() const { return comm_; }  ///< local call; for the exchange, which speaks point to point
  std::int64_t max_transfer_bytes() const { return max_transfer_bytes_; }

  /// A collective call was begun to which some rank will not come: destruction leaves the communicator as it is.
  /// Local call.
  void abandon() { is_abandoned_ = true; }

  /// Lets MPI finish what others wait for, while this rank waits for them outside of MPI. Local call.
  void make_progress();

 private:
  const MpiSession& session_;
  int uncaught_at_start_;
  bool is_abandoned_ = false;
  std::int64_t max_transfer_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace lockstep
