#include "runtime/comm/device_exchange.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "runtime/comm/transfer_pieces.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t piece_alignment = 64;  // elements: pieces start where a whole memory transaction does

/// Elements of a slice that travel in one round. The same on all ranks.
std::int64_t elements_a_round(const DeviceSettings& settings, const FlatLayout& layout, std::int64_t num_inputs) {
  const std::int64_t fitting = settings.max_staging_bytes / static_cast<std::int64_t>(size_of(layout.type)) /
                               std::max<std::int64_t>(num_inputs, 1);
  return std::max(fitting / piece_alignment * piece_alignment, piece_alignment);
}

/// Enough for any program that these slots allow.
std::size_t staging_bytes(const DeviceCommunicator& communicator, const FlatLayout& layout,
                          const std::vector<int>& num_slots) {
  if (communicator.settings().reduction == ReductionOrder::fast || communicator.num_ranks() == 1) return 0;
  const std::int64_t most_inputs = std::accumulate(num_slots.begin(), num_slots.end(), std::int64_t{0});
  const std::int64_t longest = slice_of(layout, communicator.num_ranks(), 0).size();
  const std::int64_t largest_round =
      std::max(elements_a_round(communicator.settings(), layout, 1), most_inputs * piece_alignment);
  return static_cast<std::size_t>(std::min(most_inputs * longest, largest_round)) * size_of(layout.type);
}

/// The tree over a rank's own `num_nodes` sums.
TreeProgram own_program(int num_nodes) {
  std::vector<LeafRange> leaves;
  for (int node = 0; node < num_nodes; ++node) leaves.push_back({node, node + 1});
  return make_tree_program(num_nodes, leaves);
}

}  // namespace

DeviceExchange::DeviceExchange(DeviceCommunicator& communicator, const FlatLayout& layout, std::vector<int> num_slots)
    : communicator_(communicator),
      layout_(layout),
      num_slots_(std::move(num_slots)),
      slice_(slice_of(layout, communicator.num_ranks(), communicator.rank())),
      buffer_bytes_(buffer_bytes(layout)),
      memory_(communicator.device(), buffer_bytes_ * (1 + static_cast<std::size_t>(std::max(layout.num_slots, 1)))),
      staging_(communicator.device(), staging_bytes(communicator, layout, num_slots_)) {}

DeviceExchange::~DeviceExchange() { communicator_.finish(); }

void DeviceExchange::start_reduce(const TreeProgram& program, Slice range, std::byte* out) {
  check_program(program, num_slots_);
  if (range.begin < 0 || range.end > layout_.num_elements() || range.size() < 0) {
    throw std::logic_error("a reduction was started for elements that the flat state does not have");
  }
  if (range.size() == 0) return;
  communicator_.begin_operation(OperationKind::reduce);
  if (communicator_.settings().reduction == ReductionOrder::exact) {
    reduce_exactly(program, range, out);
  } else {
    reduce_fast(program, range, out);
  }
  communicator_.end_operation();
  started_elements_ += range.size();
}

void DeviceExchange::reduce_slice(const TreeProgram& program, std::byte* out) {
  communicator_.check();
  if (started_elements_ == 0) start_reduce(program, {0, layout_.num_elements()}, out);
  if (started_elements_ != layout_.num_elements()) {
    throw std::logic_error("reductions were started for a part of the flat state only");
  }
  started_elements_ = 0;
  communicator_.let_caller_wait();
}

void DeviceExchange::publish_weights() {
  if (layout_.num_elements() == 0) return;
  communicator_.begin_operation(OperationKind::publish);
  communicator_.transfer_group([&](DeviceChannel& channel) {
    if (slices_are_equal()) {
      channel.all_gather(weights(), slice_.size(), layout_.type);
      return;
    }
    for (int owner = 0; owner < communicator_.num_ranks(); ++owner) {
      const Slice theirs = slice_of(layout_, communicator_.num_ranks(), owner);
      if (theirs.size() == 0) continue;
      channel.broadcast(element(weights(), theirs.begin), theirs.size(), layout_.type, owner);
    }
  });
  communicator_.end_operation();
  communicator_.let_caller_wait();
}

void DeviceExchange::reduce_exactly(const TreeProgram& program, Slice range, std::byte* out) {
  const int num_ranks = communicator_.num_ranks();
  const int rank = communicator_.rank();
  // The same on all ranks: functions of the program, the range and the layout.
  const std::int64_t max_elements = elements_a_round(communicator_.settings(), layout_, program.num_inputs);
  std::int64_t longest = 0;
  for (int owner = 0; owner < num_ranks; ++owner) longest = std::max(longest, owned(owner, range).size());
  const std::size_t num_rounds = transfer_pieces(longest, max_elements).size();

  for (std::size_t round = 0; round < num_rounds; ++round) {
    const Slice mine = part_of(owned(rank, range), round, max_elements);
    std::vector<const std::byte*> inputs;
    communicator_.transfer_group([&](DeviceChannel& channel) {
      std::byte* next = staging_.data();
      for (int source = 0; source < num_ranks; ++source) {
        for (int slot = 0; slot < program.nodes_of_rank[static_cast<std::size_t>(source)]; ++slot) {
          if (source == rank) {
            inputs.push_back(element(gradient_slot(slot), mine.begin));
            continue;
          }
          inputs.push_back(next);
          if (mine.size() != 0) channel.receive(next, mine.size(), layout_.type, source);
          next = element(next, mine.size());
        }
      }
      for (int owner = 0; owner < num_ranks; ++owner) {
        const Slice theirs = part_of(owned(owner, range), round, max_elements);
        if (owner == rank || theirs.size() == 0) continue;
        for (int slot = 0; slot < program.nodes_of_rank[static_cast<std::size_t>(rank)]; ++slot) {
          channel.send(element(gradient_slot(slot), theirs.begin), theirs.size(), layout_.type, owner);
        }
      }
    });
    // In the same queue as the transfers: it runs between those of this round and those of the next.
    communicator_.device().evaluate_tree(program, layout_.type, inputs, mine.size(),
                                         element(out, mine.begin - slice_.begin));
  }
}

void DeviceExchange::reduce_fast(const TreeProgram& program, Slice range, std::byte* out) {
  const int num_ranks = communicator_.num_ranks();
  const int rank = communicator_.rank();
  const int num_nodes = program.nodes_of_rank[static_cast<std::size_t>(rank)];
  if (num_nodes != 1) {  // a rank without a node brings zeros
    std::vector<const std::byte*> inputs;
    for (int slot = 0; slot < num_nodes; ++slot) inputs.push_back(element(gradient_slot(slot), range.begin));
    communicator_.device().evaluate_tree(own_program(num_nodes), layout_.type, inputs, range.size(),
                                         element(gradient_slot(0), range.begin));
  }
  communicator_.transfer_group([&](DeviceChannel& channel) {
    if (slices_are_equal() && range.size() == layout_.num_elements()) {
      channel.reduce_scatter(gradient_slot(0), out, slice_.size(), layout_.type);
      return;
    }
    for (int owner = 0; owner < num_ranks; ++owner) {
      const Slice theirs = owned(owner, range);
      if (theirs.size() == 0) continue;
      std::byte* const into = owner == rank ? element(out, theirs.begin - slice_.begin) : nullptr;
      channel.reduce(element(gradient_slot(0), theirs.begin), into, theirs.size(), layout_.type, owner);
    }
  });
}

}  // namespace lockstep
