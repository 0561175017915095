#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// The fixed tree over doubles, seen from one rank: leaves are added from left to right, values() are the covering
/// nodes of the range, ready for TreeProgram::evaluate. For losses, weights, squared norms and metrics.
class NodeSums {
 public:
  NodeSums(std::int64_t num_leaves, LeafRange range)
      : accumulator_(num_leaves, range),
        slots_(static_cast<std::size_t>(TreeAccumulator::num_slots(num_leaves, range)), 0.0),
        num_nodes_(covering_nodes(num_leaves, range).size()) {}

  void add(double leaf) {
    const TreeAccumulator::Deposit where = accumulator_.next();
    const auto slot = static_cast<std::size_t>(where.slot);
    slots_[slot] = where.add ? slots_[slot] + leaf : leaf;
    for (const int merged : where.merge)
      slots_[static_cast<std::size_t>(merged)] += slots_[static_cast<std::size_t>(merged) + 1];
  }

  std::vector<double> values() const {
    return {slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(num_nodes_)};
  }

 private:
  TreeAccumulator accumulator_;
  std::vector<double> slots_;
  std::size_t num_nodes_;
};

}  // namespace lockstep
