#include "runtime/plan/reduction_tree.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {
namespace {

/// The tree as the rules describe it, level by level, over sums that remember their brackets.
std::string sum_by_levels(std::int64_t num_leaves) {
  std::vector<std::string> level;
  for (std::int64_t leaf = 0; leaf < num_leaves; ++leaf) level.push_back(std::to_string(leaf));
  while (level.size() > 1) {
    std::vector<std::string> above;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      above.push_back(i + 1 < level.size() ? "(" + level[i] + "+" + level[i + 1] + ")" : level[i]);
    }
    level = above;
  }
  return level.empty() ? "" : level.front();
}

/// What a rank holds in its slots after its last leaf.
std::vector<std::string> accumulate(std::int64_t num_leaves, LeafRange range) {
  TreeAccumulator accumulator(num_leaves, range);
  std::vector<std::string> slots;
  std::size_t most_slots = 0;
  for (std::int64_t leaf = range.begin; leaf < range.end; ++leaf) {
    const TreeAccumulator::Deposit deposit = accumulator.next();
    const auto slot = static_cast<std::size_t>(deposit.slot);
    if (deposit.add) {
      EXPECT_EQ(slot + 1, slots.size());
      slots.at(slot) = "(" + slots.at(slot) + "+" + std::to_string(leaf) + ")";
    } else {
      EXPECT_EQ(slot, slots.size());
      slots.push_back(std::to_string(leaf));
    }
    most_slots = std::max(most_slots, slots.size());
    for (const int merge : deposit.merge) {
      const auto left = static_cast<std::size_t>(merge);
      EXPECT_EQ(left + 2, slots.size());
      slots.at(left) = "(" + slots.at(left) + "+" + slots.at(left + 1) + ")";
      slots.pop_back();
    }
  }
  EXPECT_EQ(most_slots, static_cast<std::size_t>(TreeAccumulator::num_slots(num_leaves, range)));
  EXPECT_EQ(slots.size(), covering_nodes(num_leaves, range).size());
  EXPECT_THROW(accumulator.next(), std::logic_error);
  return slots;
}

std::string run_program(const TreeProgram& program, std::vector<std::string> values) {
  EXPECT_EQ(static_cast<std::size_t>(program.num_inputs), values.size());
  if (values.empty()) return "";
  values.resize(static_cast<std::size_t>(program.num_values));
  for (const TreeAddition& addition : program.additions) {
    EXPECT_GE(addition.target, program.num_inputs) << "inputs are never written";
    values.at(static_cast<std::size_t>(addition.target)) = "(" + values.at(static_cast<std::size_t>(addition.left)) +
                                                           "+" + values.at(static_cast<std::size_t>(addition.right)) +
                                                           ")";
  }
  return values.at(static_cast<std::size_t>(program.root));
}

std::string sum_over(std::int64_t num_leaves, std::span<const LeafRange> shares) {
  std::vector<std::string> inputs;
  const TreeProgram program = make_tree_program(num_leaves, shares);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const std::vector<std::string> slots = accumulate(num_leaves, shares[rank]);
    EXPECT_EQ(static_cast<std::size_t>(program.nodes_of_rank.at(rank)), slots.size());
    inputs.insert(inputs.end(), slots.begin(), slots.end());
  }
  return run_program(program, inputs);
}

std::vector<LeafRange> even_shares(std::int64_t num_leaves, int num_ranks) {
  std::vector<LeafRange> shares;
  for (int rank = 0; rank < num_ranks; ++rank) shares.push_back(share_of(num_leaves, num_ranks, rank));
  return shares;
}

TEST(ReductionTree, SumDoesNotDependOnTheNumberOfRanks) {
  for (std::int64_t num_leaves = 0; num_leaves <= 129; ++num_leaves) {
    const std::string expected = sum_by_levels(num_leaves);
    for (int num_ranks = 1; num_ranks <= 19; ++num_ranks) {
      ASSERT_EQ(expected, sum_over(num_leaves, even_shares(num_leaves, num_ranks)))
          << num_leaves << " leaves on " << num_ranks << " ranks";
    }
  }
}

TEST(ReductionTree, SumDoesNotDependOnUnevenShares) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t num_leaves = std::uniform_int_distribution<std::int64_t>(1, 90)(random);
    std::vector<LeafRange> shares;
    for (std::int64_t begin = 0; begin < num_leaves;) {
      const std::int64_t size = std::uniform_int_distribution<std::int64_t>(0, num_leaves - begin)(random);
      shares.push_back({begin, begin + size});
      begin += size;
    }
    ASSERT_EQ(sum_by_levels(num_leaves), sum_over(num_leaves, shares));
  }
}

TEST(ReductionTree, RankHoldsAtMostTwiceTheLogarithm) {
  for (std::int64_t num_leaves = 1; num_leaves <= 129; ++num_leaves) {
    const double bound = std::max(1.0, 2.0 * std::log2(static_cast<double>(num_leaves)));
    for (std::int64_t begin = 0; begin <= num_leaves; ++begin) {
      for (std::int64_t end = begin; end <= num_leaves; ++end) {
        ASSERT_LE(static_cast<double>(covering_nodes(num_leaves, {begin, end}).size()), bound)
            << num_leaves << ": " << begin << ".." << end;
        ASSERT_LE(TreeAccumulator::num_slots(num_leaves, {begin, end}), bound)
            << num_leaves << ": " << begin << ".." << end;
      }
    }
  }
}

TEST(ReductionTree, SlotsHoldTheCoveringNodes) {
  for (std::int64_t num_leaves = 1; num_leaves <= 40; ++num_leaves) {
    for (std::int64_t begin = 0; begin < num_leaves; ++begin) {
      for (std::int64_t end = begin + 1; end <= num_leaves; ++end) {
        const std::vector<std::string> slots = accumulate(num_leaves, {begin, end});
        std::int64_t leaf = begin;
        for (std::size_t i = 0; i < slots.size(); ++i) {
          const TreeNode node = covering_nodes(num_leaves, {begin, end}).at(i);
          ASSERT_EQ(leaf, node.index << node.level);
          const std::int64_t after = std::min((node.index + 1) << node.level, num_leaves);
          // A subtree's own sum, its leaves renamed to where they are.
          const std::string alone = sum_by_levels(after - leaf);
          std::string renamed;
          for (std::size_t c = 0; c < alone.size();) {
            std::size_t digits = 0;
            while (c + digits < alone.size() && std::isdigit(alone[c + digits])) ++digits;
            renamed += digits ? std::to_string(std::stoll(alone.substr(c, digits)) + leaf) : alone.substr(c, 1);
            c += std::max<std::size_t>(1, digits);
          }
          ASSERT_EQ(renamed, slots[i]);
          leaf = after;
        }
        ASSERT_EQ(leaf, end);
      }
    }
  }
}

TEST(ReductionTree, NodesOfAlignedRangesAreWhole) {
  EXPECT_EQ(covering_nodes(8, {0, 8}), (std::vector<TreeNode>{{3, 0}}));
  EXPECT_EQ(covering_nodes(8, {4, 8}), (std::vector<TreeNode>{{2, 1}}));
  EXPECT_EQ(covering_nodes(5, {4, 5}), (std::vector<TreeNode>{{2, 1}}));
  EXPECT_EQ(covering_nodes(8, {1, 7}), (std::vector<TreeNode>{{0, 1}, {1, 1}, {1, 2}, {0, 6}}));
  EXPECT_TRUE(covering_nodes(8, {3, 3}).empty());
  EXPECT_EQ(TreeAccumulator::num_slots(1, {0, 1}), 1);
  EXPECT_EQ(TreeAccumulator::num_slots(2, {0, 2}), 1);
  EXPECT_EQ(TreeAccumulator::num_slots(3, {0, 3}), 1);
  EXPECT_EQ(TreeAccumulator::num_slots(4, {0, 4}), 2);
  EXPECT_EQ(TreeAccumulator::num_slots(4, {2, 2}), 0);
}

TEST(ReductionTree, CountsBeyondThirtyTwoBitsAreCheap) {
  const std::int64_t num_leaves = (std::int64_t{1} << 60) + 12345;
  const LeafRange last = share_of(num_leaves, 3, 2);
  EXPECT_EQ(last.end, num_leaves);
  EXPECT_LE(covering_nodes(num_leaves, last).size(), 120u);
  EXPECT_LE(TreeAccumulator::num_slots(num_leaves, last), 120);
}

TEST(ReductionTree, ProgramAddsDoublesInTheTreesOrder) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-40.0, 40.0);
  for (const std::int64_t num_leaves : {1, 2, 3, 7, 10, 37}) {
    std::vector<double> leaves;
    for (std::int64_t leaf = 0; leaf < num_leaves; ++leaf) leaves.push_back(std::exp2(exponent(random)));
    // One leaf a rank: the program is the whole tree.
    const double expected =
        make_tree_program(num_leaves, even_shares(num_leaves, static_cast<int>(num_leaves))).evaluate(leaves);
    for (const int num_ranks : {1, 2, 3, 5}) {
      const auto shares = even_shares(num_leaves, num_ranks);
      std::vector<double> inputs;
      for (const LeafRange& share : shares) {
        TreeAccumulator accumulator(num_leaves, share);
        std::vector<double> slots(static_cast<std::size_t>(TreeAccumulator::num_slots(num_leaves, share)));
        for (std::int64_t leaf = share.begin; leaf < share.end; ++leaf) {
          const TreeAccumulator::Deposit deposit = accumulator.next();
          double& slot = slots.at(static_cast<std::size_t>(deposit.slot));
          slot = deposit.add ? slot + leaves[static_cast<std::size_t>(leaf)] : leaves[static_cast<std::size_t>(leaf)];
          for (const int merge : deposit.merge) {
            slots.at(static_cast<std::size_t>(merge)) += slots.at(static_cast<std::size_t>(merge) + 1);
          }
        }
        slots.resize(covering_nodes(num_leaves, share).size());
        inputs.insert(inputs.end(), slots.begin(), slots.end());
      }
      EXPECT_EQ(expected, make_tree_program(num_leaves, shares).evaluate(inputs));
    }
  }
}

TEST(ReductionTree, EmptySumIsZero) {
  const std::vector<LeafRange> shares(3);
  const TreeProgram program = make_tree_program(0, shares);
  EXPECT_EQ(program.num_inputs, 0);
  EXPECT_EQ(program.nodes_of_rank, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(program.evaluate({}), 0.0);
}

TEST(ReductionTree, RefusesSharesThatDoNotCoverTheLeaves) {
  EXPECT_THROW(make_tree_program(4, std::vector<LeafRange>{{0, 1}, {2, 4}}), std::logic_error);
  EXPECT_THROW(make_tree_program(4, std::vector<LeafRange>{{0, 1}, {1, 3}}), std::logic_error);
  EXPECT_THROW(make_tree_program(4, std::vector<LeafRange>{{0, 2}, {2, 5}}), std::logic_error);
  EXPECT_THROW(covering_nodes(4, {3, 2}), std::logic_error);
  const double input = 1.0;
  EXPECT_THROW(make_tree_program(2, even_shares(2, 2)).evaluate({&input, 1}), std::logic_error);
}

TEST(ReductionTree, SharesAreAsEvenAsTheyGo) {
  for (std::int64_t num_leaves = 0; num_leaves < 40; ++num_leaves) {
    for (int num_ranks = 1; num_ranks < 12; ++num_ranks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const LeafRange share = share_of(num_leaves, num_ranks, rank);
        EXPECT_EQ(share.begin, next);
        EXPECT_EQ(share.size(), num_leaves / num_ranks + (rank < num_leaves % num_ranks ? 1 : 0));
        next = share.end;
      }
      EXPECT_EQ(next, num_leaves);
    }
  }
}

}  // namespace
}  // namespace lockstep
