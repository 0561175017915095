#include "runtime/comm/shared_memory_communicator.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/shared_exchange.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t mailbox_bytes = std::size_t{32} << 10;
constexpr std::size_t barrier_bytes = 4096;
static_assert(sizeof(SharedBarrier::State) <= barrier_bytes);

/// Pieces of at most a mailbox, and at least one: every collective call is a barrier too, even one without data.
std::size_t num_pieces(std::size_t num_bytes) {
  return std::max<std::size_t>(1, (num_bytes + mailbox_bytes - 1) / mailbox_bytes);
}

/// The bytes of piece `index` of `num_bytes`; none after the last.
std::size_t piece_bytes(std::size_t num_bytes, std::size_t index) {
  return std::min(mailbox_bytes, num_bytes - std::min(num_bytes, index * mailbox_bytes));
}

/// **Collective.** Processors that the ranks may use together, however the launcher binds them.
int num_processors_of(Communicator& ranks) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
  std::vector<cpu_set_t> all(static_cast<std::size_t>(ranks.num_ranks()));
  const std::vector<std::size_t> counts(all.size(), sizeof mine);
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), counts, std::as_writable_bytes(std::span(all)));
  for (const cpu_set_t& other : all) CPU_OR(&mine, &mine, &other);
  return CPU_COUNT(&mine);
}

}  // namespace

SharedMemoryCommunicator::SharedMemoryCommunicator(const MpiSession& session, Reporter report,
                                                   std::size_t max_exchange_bytes)
    : mpi_(session),
      report_(std::move(report)),
      max_exchange_bytes_(max_exchange_bytes),
      control_(mpi_, barrier_bytes + 2 * mailbox_bytes * static_cast<std::size_t>(session.num_ranks())),
      barrier_(control_.data(), session.num_ranks(), num_processors_of(mpi_), [this] { mpi_.make_progress(); }) {
  agree(mpi_, [&] {
    if (rank() == 0) control_.reserve(0, control_.size());
  });
}

std::byte* SharedMemoryCommunicator::mailbox(int rank) const {
  const std::size_t index = 2 * static_cast<std::size_t>(rank) + num_pieces_sent_ % 2;
  return control_.data() + barrier_bytes + index * mailbox_bytes;
}

// A mailbox is rewritten after two more pieces. Whoever writes it then has passed the barrier of the piece between,
// at which every rank arrived with this piece read. So one barrier a piece is enough.

void SharedMemoryCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  std::byte* next = bytes.data();
  for (std::size_t index = 0; index < num_pieces(bytes.size()); ++index) {
    const std::size_t size = piece_bytes(bytes.size(), index);
    if (rank() == root && size != 0) std::memcpy(mailbox(root), next, size);
    barrier();
    if (rank() != root && size != 0) std::memcpy(next, mailbox(root), size);
    next += size;
    ++num_pieces_sent_;
  }
}

void SharedMemoryCommunicator::all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                                          std::span<std::byte> all) {
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  for (std::size_t index = 0; index < num_pieces(longest); ++index) {
    const std::size_t begin = index * mailbox_bytes;
    const std::size_t my_size = piece_bytes(mine.size(), index);
    if (my_size != 0) std::memcpy(mailbox(rank()), mine.data() + begin, my_size);
    barrier();
    std::size_t part = 0;
    for (int source = 0; source < num_ranks(); ++source) {
      const std::size_t count = counts[static_cast<std::size_t>(source)];
      const std::size_t size = piece_bytes(count, index);
      if (size != 0) std::memcpy(all.data() + part + begin, mailbox(source), size);
      part += count;
    }
    ++num_pieces_sent_;
  }
}

std::unique_ptr<FlatExchange> SharedMemoryCommunicator::make_exchange(const FlatLayout& layout) {
  const std::vector<int> num_slots = gather_num_slots(*this, layout);
  try {
    return std::make_unique<SharedExchange>(mpi_, barrier_, layout, num_slots, max_exchange_bytes_);
  } catch (const Error& error) {  // the same on all ranks
    if (rank() == 0) {
      report_(text("gradients go through MPI, with the same results but more slowly, because ", error.what()));
    }
    return mpi_.make_exchange(layout);
  }
}

}  // namespace lockstep
