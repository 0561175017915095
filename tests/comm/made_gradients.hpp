#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/plan/communicator.hpp"

namespace lockstep::test {

/// The gradient of a micro-batch: far-apart magnitudes and both signs, so that any other order gives other bits.
template <class T>
T gradient_of(std::int64_t leaf, std::int64_t element, std::int64_t step) {
  auto bits = static_cast<std::uint64_t>(leaf * 1'000'003 + element * 7'919 + step * 104'729 + 1);
  bits ^= bits >> 31;
  bits *= 0x9e3779b97f4a7c15u;
  bits ^= bits >> 29;
  bits *= 0xbf58476d1ce4e5b9u;
  bits ^= bits >> 32;
  const double fraction = static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
  return static_cast<T>(std::ldexp(fraction, static_cast<int>(bits % 17) - 8));
}

/// The sum level by level, as the rules describe it.
template <class T>
T serial_sum(std::int64_t num_leaves, std::int64_t element, std::int64_t step) {
  std::vector<T> level;
  for (std::int64_t leaf = 0; leaf < num_leaves; ++leaf) level.push_back(gradient_of<T>(leaf, element, step));
  while (level.size() > 1) {
    std::vector<T> above;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      above.push_back(i + 1 < level.size() ? level[i] + level[i + 1] : level[i]);
    }
    level = above;
  }
  return level.empty() ? T{0} : level.front();
}

template <class T>
constexpr ElementType type_of() {
  return sizeof(T) == 4 ? ElementType::float32 : ElementType::float64;
}

inline std::vector<LeafRange> shares_of(std::int64_t num_leaves, int num_ranks) {
  std::vector<LeafRange> shares;
  for (int rank = 0; rank < num_ranks; ++rank) shares.push_back(share_of(num_leaves, num_ranks, rank));
  return shares;
}

template <class T>
FlatLayout layout_for(const Communicator& ranks, std::int64_t num_leaves, std::int64_t num_blocks,
                      std::int64_t block_elements) {
  FlatLayout layout;
  layout.type = type_of<T>();
  layout.num_blocks = num_blocks;
  layout.block_elements = block_elements;
  layout.num_slots = TreeAccumulator::num_slots(num_leaves, share_of(num_leaves, ranks.num_ranks(), ranks.rank()));
  return layout;
}

/// Puts the gradients of this rank's micro-batches into its slots. `slot(i)` is the buffer of slot i.
template <class T, class SlotOf>
void fill_slots(const SlotOf& slot, std::int64_t num_elements, std::int64_t num_leaves, LeafRange mine,
                std::int64_t step) {
  TreeAccumulator accumulator(num_leaves, mine);
  for (std::int64_t leaf = mine.begin; leaf < mine.end; ++leaf) {
    const TreeAccumulator::Deposit deposit = accumulator.next();
    for (std::int64_t i = 0; i < num_elements; ++i) {
      const T gradient = gradient_of<T>(leaf, i, step);
      T& sum = slot(deposit.slot)[i];
      sum = deposit.add ? sum + gradient : gradient;
    }
    for (const int merge : deposit.merge) {
      for (std::int64_t i = 0; i < num_elements; ++i) slot(merge)[i] += slot(merge + 1)[i];
    }
  }
}

/// How many of `sums`, elements `begin` and on, do not have the bits of the serial sum.
template <class T>
std::int64_t num_wrong_sums(const T* sums, std::int64_t begin, std::int64_t num_elements, std::int64_t num_leaves,
                            std::int64_t step) {
  std::int64_t num_wrong = 0;
  for (std::int64_t i = 0; i < num_elements; ++i) {
    const T expected = serial_sum<T>(num_leaves, begin + i, step);
    num_wrong += std::memcmp(sums + i, &expected, sizeof expected) != 0;
  }
  return num_wrong;
}

}  // namespace lockstep::test
