#include "runtime/comm/mpi_communicator.hpp"

#include <algorithm>
#include <exception>
#include <numeric>

#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/mpi_error.hpp"
#include "runtime/comm/mpi_exchange.hpp"
#include "runtime/comm/transfer_pieces.hpp"

namespace lockstep {

MpiCommunicator::MpiCommunicator(const MpiSession& session, std::int64_t max_transfer_bytes)
    : session_(session),
      uncaught_at_start_(std::uncaught_exceptions()),
      max_transfer_bytes_(std::min<std::int64_t>(max_transfer_bytes, default_max_transfer_bytes)) {
  check_mpi(MPI_Comm_dup(session.comm(), &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiCommunicator::~MpiCommunicator() {
  // While an exception unwinds the other ranks may be somewhere else: no collective call then.
  if (is_abandoned_ || std::uncaught_exceptions() > uncaught_at_start_) return;
  MPI_Comm_free(&comm_);
}

void MpiCommunicator::barrier() { check_mpi(MPI_Barrier(comm_), "MPI_Barrier"); }

void MpiCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  std::byte* next = bytes.data();
  for (const std::int64_t piece : transfer_pieces(static_cast<std::int64_t>(bytes.size()), max_transfer_bytes_)) {
    check_mpi(MPI_Bcast(next, static_cast<int>(piece), MPI_BYTE, root, comm_), "MPI_Bcast");
    next += piece;
  }
}

void MpiCommunicator::all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                                 std::span<std::byte> all) {
  const auto begin = std::accumulate(counts.begin(), counts.begin() + rank(), std::size_t{0});
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
  all_gather_in_place(counts, all);
}

void MpiCommunicator::all_gather_in_place(std::span<const std::size_t> counts, std::span<std::byte> all) {
  const auto total = static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  if (total <= max_transfer_bytes_) {
    std::vector<int> sizes;
    std::vector<int> offsets;
    int offset = 0;
    for (const std::size_t count : counts) {
      sizes.push_back(static_cast<int>(count));
      offsets.push_back(offset);
      offset += sizes.back();
    }
    check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
    return;
  }
  // Offsets beyond an int: each rank broadcasts its part, cut into pieces.
  std::size_t begin = 0;
  for (std::size_t root = 0; root < counts.size(); ++root) {
    broadcast(all.subspan(begin, counts[root]), static_cast<int>(root));
    begin += counts[root];
  }
}

std::unique_ptr<FlatExchange> MpiCommunicator::make_exchange(const FlatLayout& layout) {
  const std::vector<int> num_slots = gather_num_slots(*this, layout);
  std::unique_ptr<FlatExchange> exchange;
  agree(*this, [&] { exchange = std::make_unique<MpiExchange>(*this, layout, num_slots); });
  return exchange;
}

void MpiCommunicator::make_progress() {
  int has_message = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &has_message, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

}  // namespace lockstep
