#include "runtime/comm/shared_exchange.hpp"

#include <utility>

#include "runtime/comm/tree_kernel.hpp"

namespace lockstep {
namespace {

std::vector<std::size_t> number_buffers(const std::vector<int>& num_slots) {
  std::vector<std::size_t> first = {1};
  for (const int count : num_slots) first.push_back(first.back() + static_cast<std::size_t>(count));
  return first;
}

}  // namespace

SharedExchange::SharedExchange(Communicator& communicator, SharedBarrier& barrier, const FlatLayout& layout,
                               std::vector<int> num_slots, std::size_t max_bytes)
    : barrier_(barrier),
      layout_(layout),
      num_slots_(std::move(num_slots)),
      rank_(static_cast<std::size_t>(communicator.rank())),
      slice_(slice_of(layout, communicator.num_ranks(), communicator.rank())),
      buffer_bytes_(buffer_bytes(layout)),
      first_buffer_(number_buffers(num_slots_)),
      segment_(communicator, buffer_bytes_ * first_buffer_.back(), max_bytes) {
  agree(communicator, [&] {
    const std::size_t element_bytes = size_of(layout.type);
    segment_.reserve(static_cast<std::size_t>(slice_.begin) * element_bytes,
                     static_cast<std::size_t>(slice_.size()) * element_bytes);
    segment_.reserve(buffer_bytes_ * first_buffer_[rank_],
                     buffer_bytes_ * (first_buffer_[rank_ + 1] - first_buffer_[rank_]));
  });
}

void SharedExchange::reduce_slice(const TreeProgram& program, std::byte* out) {
  check_program(program, num_slots_);
  const std::size_t begin = static_cast<std::size_t>(slice_.begin) * size_of(layout_.type);
  std::vector<const std::byte*> inputs;
  for (std::size_t rank = 0; rank < program.nodes_of_rank.size(); ++rank) {
    for (int slot = 0; slot < program.nodes_of_rank[rank]; ++slot) inputs.push_back(slot_of(rank, slot) + begin);
  }
  barrier_.arrive_and_wait();
  evaluate_tree(program, layout_.type, inputs, slice_.size(), out);
}

}  // namespace lockstep
