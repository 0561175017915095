#include "runtime/comm/flat_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "runtime/comm/transfer_pieces.hpp"

namespace lockstep {

Slice slice_of(const FlatLayout& layout, int num_ranks, int rank) {
  const LeafRange blocks = share_of(layout.num_blocks, num_ranks, rank);
  return {blocks.begin * layout.block_elements, blocks.end * layout.block_elements};
}

Slice part_of(const Slice& slice, std::size_t index, std::int64_t max_elements) {
  const std::vector<std::int64_t> pieces = transfer_pieces(slice.size(), max_elements);
  if (index >= pieces.size()) return {slice.end, slice.end};
  const std::int64_t begin = slice.begin + static_cast<std::int64_t>(index) * max_elements;
  return {begin, begin + pieces[index]};
}

Slice intersection(const Slice& a, const Slice& b) {
  const Slice shared = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return shared.size() > 0 ? shared : Slice{b.begin, b.begin};
}

std::size_t buffer_bytes(const FlatLayout& layout) {
  const std::size_t num_bytes = static_cast<std::size_t>(layout.num_elements()) * size_of(layout.type);
  return (num_bytes + AlignedBuffer::alignment - 1) / AlignedBuffer::alignment * AlignedBuffer::alignment;
}

std::vector<int> gather_num_slots(Communicator& communicator, const FlatLayout& layout) {
  using Row = std::array<std::int64_t, 4>;
  const Row mine = {static_cast<std::int64_t>(layout.type), layout.num_blocks, layout.block_elements,
                    layout.num_slots};
  std::vector<Row> rows(static_cast<std::size_t>(communicator.num_ranks()));
  const std::vector<std::size_t> counts(rows.size(), sizeof mine);
  communicator.all_gather(std::as_bytes(std::span(mine)), counts, std::as_writable_bytes(std::span(rows)));

  std::vector<int> num_slots;
  for (const Row& row : rows) {
    const auto type = static_cast<ElementType>(row[0]);
    const bool is_valid = (type == ElementType::float32 || type == ElementType::float64) && row[1] >= 0 &&
                          row[2] > 0 && static_cast<std::size_t>(row[2]) * size_of(type) % 64 == 0 && row[3] >= 0;
    const bool is_alike = row[0] == rows[0][0] && row[1] == rows[0][1] && row[2] == rows[0][2];
    if (!is_valid || !is_alike) throw std::logic_error("the ranks do not agree on a valid layout of the flat state");
    num_slots.push_back(static_cast<int>(row[3]));
  }
  return num_slots;
}

void check_program(const TreeProgram& program, const std::vector<int>& num_slots) {
  bool fits = program.nodes_of_rank.size() == num_slots.size();
  for (std::size_t rank = 0; fits && rank < num_slots.size(); ++rank) {
    fits = program.nodes_of_rank[rank] <= num_slots[rank];
  }
  if (!fits) throw std::logic_error("a tree program does not fit the ranks and gradient slots of the flat state");
}

}  // namespace lockstep
