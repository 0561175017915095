#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// The order in which the ranks' gradients are added up.
enum class ReductionOrder {
  exact,  ///< the tree below: the same bits on any number of ranks
  fast    ///< whatever the network does best: the last bits depend on the ranks. Host memory is summed exactly anyway
};

/// Half-open range of micro-batch indices (leaves) of one step: a rank's share.
struct LeafRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// Node (level, index) of the fixed binary tree over the leaves 0..num_leaves-1. It is the sum of
/// (level-1, 2 index) and (level-1, 2 index + 1); a node without a right sibling passes up unchanged.
/// The tree is a function of the number of leaves alone: it does not know ranks, so neither does the sum.
struct TreeNode {
  int level = 0;
  std::int64_t index = 0;

  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// The largest subtrees that cover exactly `range`, from left to right: what a rank can add up by itself.
/// At most max(1, 2 log2(num_leaves)) nodes; none for an empty range.
std::vector<TreeNode> covering_nodes(std::int64_t num_leaves, LeafRange range);

/// One addition of a tree program: value[target] = value[left] + value[right].
/// Values 0..num_inputs-1 are the inputs (never written); the others are temporaries.
struct TreeAddition {
  int target = 0;
  int left = 0;
  int right = 0;
};

/// How the root is added up from the nodes of all ranks: the only additions that cross ranks.
struct TreeProgram {
  int num_inputs = 0;                   ///< nodes of all ranks, rank by rank, left to right
  std::vector<int> nodes_of_rank;       ///< how many of the inputs each rank brings
  std::vector<TreeAddition> additions;  ///< in order
  int num_values = 0;                   ///< inputs and temporaries; temporaries are reused
  int root = 0;                         ///< the value that holds the result

  /// The root of double inputs, `inputs.size() == num_inputs`; 0 when there are no inputs.
  double evaluate(std::span<const double> inputs) const;
};

/// The program for contiguous shares that cover 0..num_leaves-1 in rank order. Throws std::logic_error otherwise.
TreeProgram make_tree_program(std::int64_t num_leaves, std::span<const LeafRange> shares);

/// Deals `num_leaves` to ranks as contiguous ranges, as evenly as they go: the first (num_leaves mod num_ranks)
/// ranks get one more. A rank may get none.
LeafRange share_of(std::int64_t num_leaves, int num_ranks, int rank);

/// A rank's running sums while its leaves arrive from left to right: which slot the next leaf goes to, and which
/// slots are added up after it. The slots in use are a stack; at the end slot i holds covering_nodes()[i].
class TreeAccumulator {
 public:
  TreeAccumulator(std::int64_t num_leaves, LeafRange range);

  /// What to do with the next leaf.
  struct Deposit {
    int slot = 0;            ///< where the leaf goes
    bool add = false;        ///< true: slot += leaf (its left sibling is there); false: slot = leaf
    std::vector<int> merge;  ///< afterwards, in order: slot[m] += slot[m + 1]
  };
  Deposit next();

  /// Slots that a rank with this share needs.
  static int num_slots(std::int64_t num_leaves, LeafRange range);

 private:
  std::int64_t num_leaves_;
  LeafRange range_;
  std::int64_t next_leaf_;
  std::vector<TreeNode> stack_;
};

}  // namespace lockstep
