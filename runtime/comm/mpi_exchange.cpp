#include "runtime/comm/mpi_exchange.hpp"

#include <algorithm>
#include <utility>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/comm/transfer_pieces.hpp"
#include "runtime/comm/tree_kernel.hpp"

namespace lockstep {
namespace {

constexpr int gradient_tag = 1;

}  // namespace

MpiExchange::MpiExchange(MpiCommunicator& communicator, const FlatLayout& layout, std::vector<int> num_slots)
    : communicator_(communicator), layout_(layout), num_slots_(std::move(num_slots)), memory_(layout) {}

void MpiExchange::start(Round& round, const TreeProgram& program, std::size_t index, std::int64_t max_elements) {
  const int num_ranks = communicator_.num_ranks();
  const int rank = communicator_.rank();
  const auto element_bytes = static_cast<std::int64_t>(size_of(layout_.type));
  const Slice mine = part_of(slice(), index, max_elements);
  const auto mine_bytes = static_cast<std::size_t>(mine.size() * element_bytes);

  round.requests.clear();
  round.inputs.clear();
  round.num_elements = mine.size();
  const auto staged = static_cast<std::size_t>(program.num_inputs) * mine_bytes;
  if (round.staging.size() < staged) round.staging = AlignedBuffer(staged);

  std::byte* next = round.staging.data();
  for (int source = 0; source < num_ranks; ++source) {
    for (int slot = 0; slot < program.nodes_of_rank[static_cast<std::size_t>(source)]; ++slot) {
      if (source == rank) {
        round.inputs.push_back(memory_.gradient_slot(slot) + mine.begin * element_bytes);
        continue;
      }
      round.inputs.push_back(next);
      if (mine_bytes != 0) {
        round.requests.emplace_back();
        check_mpi(MPI_Irecv(next, static_cast<int>(mine_bytes), MPI_BYTE, source, gradient_tag, communicator_.comm(),
                            &round.requests.back()),
                  "MPI_Irecv");
      }
      next += mine_bytes;
    }
  }

  // Each rank starts with its right neighbour, so that not all of them send to rank 0 first.
  for (int distance = 1; distance < num_ranks; ++distance) {
    const int owner = (rank + distance) % num_ranks;
    const Slice theirs = part_of(slice_of(layout_, num_ranks, owner), index, max_elements);
    if (theirs.size() == 0) continue;
    for (int slot = 0; slot < program.nodes_of_rank[static_cast<std::size_t>(rank)]; ++slot) {
      round.requests.emplace_back();
      check_mpi(MPI_Isend(memory_.gradient_slot(slot) + theirs.begin * element_bytes,
                          static_cast<int>(theirs.size() * element_bytes), MPI_BYTE, owner, gradient_tag,
                          communicator_.comm(), &round.requests.back()),
                "MPI_Isend");
    }
  }
}

void MpiExchange::reduce_slice(const TreeProgram& program, std::byte* out) {
  check_program(program, num_slots_);
  // The same on all ranks: a function of the program and the layout.
  const auto element_bytes = static_cast<std::int64_t>(size_of(layout_.type));
  const std::int64_t round_bytes = std::min(max_staging_bytes / 2, communicator_.max_transfer_bytes());
  const std::int64_t max_elements =
      std::max<std::int64_t>(1, round_bytes / std::max(program.num_inputs, 1) / element_bytes);
  const std::int64_t longest = slice_of(layout_, communicator_.num_ranks(), 0).size();
  const std::size_t num_rounds = transfer_pieces(longest, max_elements).size();

  if (num_rounds > 0) start(rounds_[0], program, 0, max_elements);
  for (std::size_t index = 0; index < num_rounds; ++index) {
    if (index + 1 < num_rounds) start(rounds_[(index + 1) % 2], program, index + 1, max_elements);
    Round& round = rounds_[index % 2];
    check_mpi(MPI_Waitall(static_cast<int>(round.requests.size()), round.requests.data(), MPI_STATUSES_IGNORE),
              "MPI_Waitall");
    evaluate_tree(program, layout_.type, round.inputs, round.num_elements, out);
    out += round.num_elements * element_bytes;
  }
}

void MpiExchange::publish_weights() {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank) {
    counts.push_back(static_cast<std::size_t>(slice_of(layout_, communicator_.num_ranks(), rank).size()) *
                     size_of(layout_.type));
  }
  const std::size_t total = static_cast<std::size_t>(layout_.num_elements()) * size_of(layout_.type);
  communicator_.all_gather_in_place(counts, {memory_.weights(), total});
}

}  // namespace lockstep
