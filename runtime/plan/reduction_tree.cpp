#include "runtime/plan/reduction_tree.hpp"

#include <algorithm>
#include <stdexcept>

namespace lockstep {
namespace {

/// Nodes on `level` of the tree over `num_leaves` leaves.
std::int64_t width_of(std::int64_t num_leaves, int level) { return ((num_leaves - 1) >> level) + 1; }

/// The highest name of the same subtree: a node without a right sibling passes up unchanged.
TreeNode passed_up(std::int64_t num_leaves, TreeNode node) {
  while (node.index > 0 && node.index % 2 == 0 && node.index == width_of(num_leaves, node.level) - 1) {
    node = {node.level + 1, node.index / 2};
  }
  return node;
}

bool are_siblings(const TreeNode& left, const TreeNode& right) {
  return left.level == right.level && left.index % 2 == 0 && right.index == left.index + 1;
}

TreeNode parent_of(std::int64_t num_leaves, const TreeNode& node) {
  return passed_up(num_leaves, {node.level + 1, node.index / 2});
}

/// Adds up the last two nodes as long as they are siblings; returns how often.
int merge_top(std::int64_t num_leaves, std::vector<TreeNode>& stack) {
  int num_merges = 0;
  while (stack.size() >= 2 && are_siblings(stack[stack.size() - 2], stack.back())) {
    stack.pop_back();
    stack.back() = parent_of(num_leaves, stack.back());
    ++num_merges;
  }
  return num_merges;
}

/// The largest full subtrees (2^level leaves) that cover `range`, from left to right.
std::vector<TreeNode> full_subtrees(LeafRange range) {
  std::vector<TreeNode> nodes;
  for (std::int64_t first = range.begin; first < range.end;) {
    int level = 0;
    while ((first >> level) % 2 == 0 && (std::int64_t{2} << level) <= range.end - first) ++level;
    nodes.push_back({level, first >> level});
    first += std::int64_t{1} << level;
  }
  return nodes;
}

void check_range(std::int64_t num_leaves, LeafRange range) {
  if (range.begin < 0 || range.begin > range.end || range.end > num_leaves) {
    throw std::logic_error("a range of leaves lies outside of the reduction tree");
  }
}

}  // namespace

std::vector<TreeNode> covering_nodes(std::int64_t num_leaves, LeafRange range) {
  check_range(num_leaves, range);
  std::vector<TreeNode> nodes;
  for (const TreeNode& node : full_subtrees(range)) {
    nodes.push_back(passed_up(num_leaves, node));
    merge_top(num_leaves, nodes);
  }
  return nodes;
}

double TreeProgram::evaluate(std::span<const double> inputs) const {
  if (inputs.size() != static_cast<std::size_t>(num_inputs)) {
    throw std::logic_error("a tree program was given another number of inputs than it has");
  }
  if (inputs.empty()) return 0.0;
  std::vector<double> values(inputs.begin(), inputs.end());
  values.resize(static_cast<std::size_t>(num_values));
  const auto value = [&](int index) -> double& { return values[static_cast<std::size_t>(index)]; };
  for (const TreeAddition& addition : additions) {
    value(addition.target) = value(addition.left) + value(addition.right);
  }
  return value(root);
}

TreeProgram make_tree_program(std::int64_t num_leaves, std::span<const LeafRange> shares) {
  TreeProgram program;
  std::vector<TreeNode> inputs;
  std::int64_t next_leaf = 0;
  for (const LeafRange& share : shares) {
    if (share.begin != next_leaf) throw std::logic_error("the shares of a reduction tree are not contiguous");
    const std::vector<TreeNode> nodes = covering_nodes(num_leaves, share);
    inputs.insert(inputs.end(), nodes.begin(), nodes.end());
    program.nodes_of_rank.push_back(static_cast<int>(nodes.size()));
    next_leaf = share.end;
  }
  if (next_leaf != num_leaves) throw std::logic_error("the shares of a reduction tree do not cover its leaves");

  program.num_inputs = static_cast<int>(inputs.size());
  program.num_values = program.num_inputs;
  const auto is_temporary = [&](int value) { return value >= program.num_inputs; };

  std::vector<TreeNode> stack;
  std::vector<int> values;  // values[i] holds stack[i]
  std::vector<int> free_temporaries;
  for (int input = 0; input < program.num_inputs; ++input) {
    stack.push_back(inputs[static_cast<std::size_t>(input)]);
    values.push_back(input);
    for (int merge = merge_top(num_leaves, stack); merge > 0; --merge) {
      const int right = values.back();
      values.pop_back();
      const int left = values.back();
      if (is_temporary(left)) free_temporaries.push_back(left);
      if (is_temporary(right)) free_temporaries.push_back(right);
      if (free_temporaries.empty()) free_temporaries.push_back(program.num_values++);
      const int target = free_temporaries.back();
      free_temporaries.pop_back();
      program.additions.push_back({target, left, right});
      values.back() = target;
    }
  }
  program.root = values.empty() ? 0 : values.front();
  return program;
}

LeafRange share_of(std::int64_t num_leaves, int num_ranks, int rank) {
  const std::int64_t base = num_leaves / num_ranks;
  const std::int64_t longer = num_leaves % num_ranks;
  const std::int64_t begin = rank * base + std::min<std::int64_t>(rank, longer);
  return {begin, begin + base + (rank < longer ? 1 : 0)};
}

TreeAccumulator::TreeAccumulator(std::int64_t num_leaves, LeafRange range)
    : num_leaves_(num_leaves), range_(range), next_leaf_(range.begin) {
  check_range(num_leaves, range);
}

TreeAccumulator::Deposit TreeAccumulator::next() {
  if (next_leaf_ >= range_.end) throw std::logic_error("a leaf was added after the last one of the range");
  const TreeNode leaf = passed_up(num_leaves_, {0, next_leaf_++});
  Deposit deposit;
  deposit.add = !stack_.empty() && are_siblings(stack_.back(), leaf);
  if (deposit.add) {
    stack_.back() = parent_of(num_leaves_, stack_.back());
  } else {
    stack_.push_back(leaf);
  }
  deposit.slot = static_cast<int>(stack_.size()) - 1;
  for (int merge = merge_top(num_leaves_, stack_), slot = deposit.slot; merge > 0; --merge) {
    deposit.merge.push_back(--slot);
  }
  return deposit;
}

int TreeAccumulator::num_slots(std::int64_t num_leaves, LeafRange range) {
  check_range(num_leaves, range);
  // While the full subtree number `held` fills up, the earlier ones lie below it. One of 2^level leaves takes
  // `level` slots, as every second leaf is added to its sibling at once; so is a last leaf that passed up.
  const std::vector<TreeNode> nodes = full_subtrees(range);
  int most = 0;
  int held = 0;
  for (const TreeNode& node : nodes) {
    const bool joins_sibling = held > 0 && node.level == 0 && range.end == num_leaves &&
                               are_siblings(nodes[static_cast<std::size_t>(held) - 1], passed_up(num_leaves, node));
    if (!joins_sibling) most = std::max(most, held + std::max(1, node.level));
    ++held;
  }
  return most;
}

}  // namespace lockstep
