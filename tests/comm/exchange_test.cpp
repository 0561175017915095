#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/plan/communicator.hpp"
#include "tests/comm/made_gradients.hpp"
#include "tests/comm/ways.hpp"

namespace lockstep::test {
namespace {

class Exchange : public OnEveryWay {};
LOCKSTEP_ON_EVERY_WAY(Exchange);

/// One step: this rank's gradients into its slots, the sum of its slice into its part of the weights, by way of
/// memory of its own or of its slot 0.
template <class T>
void run_step(Communicator& ranks, FlatExchange& exchange, const FlatLayout& layout, std::int64_t num_leaves,
              std::int64_t step, bool in_slot = false) {
  const std::vector<LeafRange> shares = shares_of(num_leaves, ranks.num_ranks());
  const LeafRange mine = shares[static_cast<std::size_t>(ranks.rank())];
  fill_slots<T>([&](int index) { return reinterpret_cast<T*>(exchange.gradient_slot(index)); }, layout.num_elements(),
                num_leaves, mine, step);
  const Slice slice = exchange.slice();
  std::vector<T> own(static_cast<std::size_t>(slice.size()));
  T* const sums = in_slot ? reinterpret_cast<T*>(exchange.gradient_slot(0)) + slice.begin : own.data();
  exchange.reduce_slice(make_tree_program(num_leaves, shares), reinterpret_cast<std::byte*>(sums));
  std::copy_n(sums, slice.size(), reinterpret_cast<T*>(exchange.weights()) + slice.begin);
  exchange.publish_weights();
}

template <class T>
std::int64_t num_wrong_weights(FlatExchange& exchange, const FlatLayout& layout, std::int64_t num_leaves,
                               std::int64_t step) {
  return num_wrong_sums<T>(reinterpret_cast<const T*>(exchange.weights()), 0, layout.num_elements(), num_leaves,
                           step);
}

template <class T>
void expect_serial_bits(Way way, std::int64_t num_leaves, std::int64_t num_blocks, std::int64_t block_elements) {
  const auto ranks = make(way);
  const FlatLayout layout = layout_for<T>(*ranks, num_leaves, num_blocks, block_elements);
  const auto exchange = ranks->make_exchange(layout);
  for (std::int64_t step = 0; step < 2; ++step) {
    run_step<T>(*ranks, *exchange, layout, num_leaves, step);
    EXPECT_EQ(num_wrong_weights<T>(*exchange, layout, num_leaves, step), 0)
        << num_leaves << " leaves, " << num_blocks << " blocks of " << block_elements << ", step " << step;
    ranks->barrier();
  }
}

TEST_P(Exchange, SumsAreThoseOfTheSerialTree) {
  for (const std::int64_t num_leaves : {1, 2, 3, 5, 6, 7, 10, 21}) {
    expect_serial_bits<float>(GetParam(), num_leaves, 9, 64);
    expect_serial_bits<double>(GetParam(), num_leaves, 3, 256);
  }
}

TEST_P(Exchange, SliceMayBeEmptyOrShorterThanOthers) {
  for (const std::int64_t num_blocks : {0, 1, 2, 3, 5}) expect_serial_bits<float>(GetParam(), 5, num_blocks, 16);
}

TEST_P(Exchange, SlicesLongerThanTheKernelsBlockAreWhole) { expect_serial_bits<float>(GetParam(), 3, 7, 1024); }

TEST_P(Exchange, StepWithoutMicroBatchesIsZero) { expect_serial_bits<float>(GetParam(), 0, 4, 16); }

TEST_P(Exchange, SumsMayTakeThePlaceOfGradientsThatAreReadInPlace) {
  const auto ranks = make(GetParam());
  for (const std::int64_t num_leaves : {0, 1, 2, 3, 5, 6, 7, 10, 21}) {
    FlatLayout layout = layout_for<float>(*ranks, num_leaves, 5, 1024);
    layout.num_slots = std::max(layout.num_slots, 1);
    const auto exchange = ranks->make_exchange(layout);
    if (!exchange->is_read_in_place()) GTEST_SKIP() << "its gradients travel";
    for (std::int64_t step = 0; step < 2; ++step) {
      run_step<float>(*ranks, *exchange, layout, num_leaves, step, /*in_slot=*/true);
      EXPECT_EQ(num_wrong_weights<float>(*exchange, layout, num_leaves, step), 0) << num_leaves << " leaves";
      ranks->barrier();
    }
  }
}

TEST_P(Exchange, SlicesCoverTheStateInRankOrder) {
  const auto ranks = make(GetParam());
  for (const std::int64_t num_blocks : {0, 1, 2, 3, 7, 8}) {
    const FlatLayout layout = layout_for<float>(*ranks, 4, num_blocks, 32);
    const Slice slice = ranks->make_exchange(layout)->slice();
    const std::vector<std::string> ends =
        gather_texts(*ranks, std::to_string(slice.begin) + " " + std::to_string(slice.end));
    std::int64_t next = 0;
    for (const std::string& text : ends) {
      EXPECT_EQ(std::stoll(text), next);
      next = std::stoll(text.substr(text.find(' ')));
      EXPECT_EQ(next % 32, 0);
    }
    EXPECT_EQ(next, layout.num_elements());
  }
}

TEST_P(Exchange, BuffersStartOnTheSameBoundaryOnEveryRank) {
  const auto ranks = make(GetParam());
  FlatLayout layout = layout_for<float>(*ranks, 5, 3, 16);
  layout.num_slots = 3;
  const auto first = ranks->make_exchange(layout);
  const auto second = ranks->make_exchange(layout);
  for (FlatExchange* exchange : {first.get(), second.get()}) {
    EXPECT_EQ(std::bit_cast<std::uintptr_t>(exchange->weights()) % 4096, 0u);
    for (int slot = 0; slot < layout.num_slots; ++slot) {
      EXPECT_EQ(std::bit_cast<std::uintptr_t>(exchange->gradient_slot(slot)) % 4096, 0u);
    }
  }
}

TEST_P(Exchange, GradientsAreZeroAtFirst) {
  const auto ranks = make(GetParam());
  FlatLayout layout = layout_for<float>(*ranks, 1, 5, 1024);
  layout.num_slots = 2;
  const auto exchange = ranks->make_exchange(layout);
  for (int slot = 0; slot < layout.num_slots; ++slot) {
    const auto* values = reinterpret_cast<const float*>(exchange->gradient_slot(slot));
    EXPECT_TRUE(std::all_of(values, values + layout.num_elements(), [](float value) { return value == 0.0f; }));
  }
}

TEST_P(Exchange, SeveralStatesLiveSideBySide) {
  const auto ranks = make(GetParam());
  const FlatLayout narrow = layout_for<float>(*ranks, 6, 5, 16);
  const FlatLayout wide = layout_for<double>(*ranks, 6, 4, 8);
  const auto first = ranks->make_exchange(narrow);
  const auto second = ranks->make_exchange(wide);
  run_step<float>(*ranks, *first, narrow, 6, 0);
  run_step<double>(*ranks, *second, wide, 6, 1);
  EXPECT_EQ(num_wrong_weights<float>(*first, narrow, 6, 0), 0);
  EXPECT_EQ(num_wrong_weights<double>(*second, wide, 6, 1), 0);
}

// A rank that runs ahead would overwrite gradients or weights that another one still reads.
TEST_P(Exchange, ThousandsOfStepsInARowKeepTheirBits) {
  const auto ranks = make(GetParam());
  constexpr std::int64_t num_leaves = 7;
  const FlatLayout layout = layout_for<float>(*ranks, num_leaves, 6, 16);
  const auto exchange = ranks->make_exchange(layout);
  std::int64_t num_wrong = 0;
  for (Repetitions steps(*ranks, 2000); steps.next();) {
    const int step = steps.index();
    run_step<float>(*ranks, *exchange, layout, num_leaves, step % 5);
    num_wrong += num_wrong_weights<float>(*exchange, layout, num_leaves, step % 5);
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST_P(Exchange, LayoutsThatDifferAreRefusedByAllRanks) {
  const auto ranks = make(GetParam());
  FlatLayout layout = layout_for<float>(*ranks, 4, 4, 16);
  if (ranks->num_ranks() > 1) {
    if (ranks->rank() == ranks->num_ranks() - 1) layout.num_blocks = 5;
    EXPECT_THROW(ranks->make_exchange(layout), std::logic_error);
  }
  layout.num_blocks = 4;
  layout.block_elements = 8;  // half of 64 bytes
  EXPECT_THROW(ranks->make_exchange(layout), std::logic_error);
  layout.block_elements = 64;
  layout.type = ElementType::bfloat16;  // sums of many ranks are not kept in 16 bits
  EXPECT_THROW(ranks->make_exchange(layout), std::logic_error);
}

TEST_P(Exchange, ProgramWithMoreNodesThanSlotsIsRefused) {
  const auto ranks = make(GetParam());
  const FlatLayout layout = layout_for<float>(*ranks, ranks->num_ranks(), 4, 16);  // one slot each
  const auto exchange = ranks->make_exchange(layout);
  TreeProgram program = make_tree_program(ranks->num_ranks(), shares_of(ranks->num_ranks(), ranks->num_ranks()));
  program.nodes_of_rank.back() = 2;
  EXPECT_THROW(exchange->reduce_slice(program, exchange->weights()), std::logic_error);
  program.nodes_of_rank.push_back(0);
  EXPECT_THROW(exchange->reduce_slice(program, exchange->weights()), std::logic_error);
}

TEST(SharedMemory, LackOfRoomIsReportedOnceAndGoesThroughMpi) {
  std::vector<std::string> lines;
  const auto ranks = make(Way::shared_memory_without_room, [&](const std::string& line) { lines.push_back(line); });
  const FlatLayout layout = layout_for<float>(*ranks, 4, 64, 1024);
  const auto exchange = ranks->make_exchange(layout);
  if (ranks->rank() == 0) {
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("gradients go through MPI"), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("4096 may be used"), std::string::npos) << lines[0];
  } else {
    EXPECT_TRUE(lines.empty());
  }
}

// Reported as: a-gradients averaged with b-gradients where ranks produce them in different orders.
TEST_P(Exchange, C102OrderOfReductions) {
  const auto ranks = make(GetParam());
  FlatLayout layout;
  layout.num_blocks = 2;
  layout.block_elements = 16;
  const auto exchange = ranks->make_exchange(layout);
  auto* gradients = reinterpret_cast<float*>(exchange->gradient_slot(0));
  const auto fill = [&](int parameter) {
    std::fill_n(gradients + 16 * parameter, 16, static_cast<float>(parameter + 1));
  };
  const bool is_odd = ranks->rank() % 2 == 1;
  fill(is_odd ? 1 : 0);
  fill(is_odd ? 0 : 1);
  const int num_ranks = ranks->num_ranks();
  const Slice slice = exchange->slice();
  exchange->reduce_slice(make_tree_program(num_ranks, shares_of(num_ranks, num_ranks)),
                         exchange->weights() + slice.begin * 4);
  exchange->publish_weights();
  const auto* sums = reinterpret_cast<const float*>(exchange->weights());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(sums[i], 1.0f * static_cast<float>(num_ranks));
    EXPECT_EQ(sums[16 + i], 2.0f * static_cast<float>(num_ranks));
  }
}

}  // namespace
}  // namespace lockstep::test
