// What only exchanges on a device have: queues that run late, ranges that start early, and the order between them.
// That sums have the bits of the serial tree is tested on a device as on every other way by exchange_test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/device_communicator.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/comm/made_gradients.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {
namespace {

/// A communicator over a fake device, and that device.
struct Ranks {
  explicit Ranks(Pace pace, const DeviceSettings& settings = {ReductionOrder::exact}) {
    auto made = std::make_unique<FakeDevice>(session(), pace);
    device = made.get();
    communicator = std::make_unique<DeviceCommunicator>(session(), std::move(made), settings);
    device->log.clear();
  }

  FakeDevice* device;
  std::unique_ptr<DeviceCommunicator> communicator;
};

/// How a step's gradients leave: the whole state at once, or in buckets from its end to its begin.
std::vector<Slice> buckets_of(std::int64_t num_elements, std::int64_t bucket_elements) {
  std::vector<Slice> buckets;
  for (std::int64_t end = num_elements; bucket_elements > 0 && end > 0; end -= bucket_elements) {
    buckets.push_back({std::max<std::int64_t>(0, end - bucket_elements), end});
  }
  return buckets;
}

struct Case {
  std::int64_t num_leaves;
  std::int64_t num_blocks;
  std::int64_t bucket_elements;  ///< 0: nothing starts early
};

/// Steps as a trainer takes them: the host runs ahead of the device through all of them and waits once, at the end.
/// Whatever the caller's queue may overwrite, it overwrites.
template <class T>
class LateSteps {
 public:
  LateSteps(Ranks& ranks, const Case& the_case)
      : ranks_(ranks),
        case_(the_case),
        layout_(layout_for<T>(*ranks.communicator, case_.num_leaves, case_.num_blocks, 16)) {
    exchange_ = ranks.communicator->make_exchange(layout_);
    shares_ = shares_of(case_.num_leaves, session().num_ranks());
    program_ = make_tree_program(case_.num_leaves, shares_);
    sums_.resize(static_cast<std::size_t>(exchange_->slice().size()));
  }

  /// The weights after each step, as the caller's queue saw them.
  std::vector<std::vector<T>> run(int num_steps) {
    seen_.resize(static_cast<std::size_t>(num_steps));
    for (int step = 0; step < num_steps; ++step) enqueue(step);
    ranks_.communicator->wait_for_device();
    ranks_.device->synchronize();
    return seen_;
  }

  const FlatLayout& layout() const { return layout_; }

 private:
  void enqueue(int step) {
    const LeafRange mine = shares_[static_cast<std::size_t>(session().rank())];
    const std::int64_t num_elements = layout_.num_elements();
    ranks_.device->run_on_caller([=, this] {
      fill_slots<T>([&](int slot) { return slot_of(slot); }, num_elements, case_.num_leaves, mine, step);
    });
    auto* const out = reinterpret_cast<std::byte*>(sums_.data());
    for (const Slice bucket : buckets_of(num_elements, case_.bucket_elements)) {
      exchange_->start_reduce(program_, bucket, out);
    }
    exchange_->reduce_slice(program_, out);
    ranks_.device->run_on_caller([=, this] {
      std::copy(sums_.begin(), sums_.end(), weights() + exchange_->slice().begin);
      spoil(sums_.data(), static_cast<std::int64_t>(sums_.size()));
      for (int slot = 0; slot < layout_.num_slots; ++slot) spoil(slot_of(slot), num_elements);
    });
    exchange_->publish_weights();
    ranks_.device->run_on_caller([=, this] {
      seen_[static_cast<std::size_t>(step)].assign(weights(), weights() + num_elements);
      spoil(weights(), num_elements);
    });
  }

  T* slot_of(int slot) { return reinterpret_cast<T*>(exchange_->gradient_slot(slot)); }
  T* weights() { return reinterpret_cast<T*>(exchange_->weights()); }
  static void spoil(T* values, std::int64_t count) {
    std::fill_n(values, count, std::numeric_limits<T>::quiet_NaN());
  }

  Ranks& ranks_;
  Case case_;
  FlatLayout layout_;
  std::unique_ptr<FlatExchange> exchange_;
  std::vector<LeafRange> shares_;
  TreeProgram program_;
  std::vector<T> sums_;
  std::vector<std::vector<T>> seen_;
};

template <class T>
std::int64_t num_far_sums(const std::vector<T>& sums, std::int64_t num_leaves, int step) {
  std::int64_t num_far = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double exact = 0.0;
    double magnitude = 0.0;
    for (std::int64_t leaf = 0; leaf < num_leaves; ++leaf) {
      const auto gradient = static_cast<double>(gradient_of<T>(leaf, static_cast<std::int64_t>(i), step));
      exact += gradient;
      magnitude += std::abs(gradient);
    }
    const double allowed = static_cast<double>(num_leaves) * std::numeric_limits<T>::epsilon() * magnitude;
    num_far += !(std::abs(static_cast<double>(sums[i]) - exact) <= allowed);  // nan is far
  }
  return num_far;
}

/// Few and many micro-batches, odd numbers of them, fewer than ranks; slices that are equal, unequal and empty;
/// buckets that cut slices anywhere.
const std::vector<Case> cases = {{5, 12, 0}, {7, 9, 0},  {1, 5, 0},  {3, 2, 0},  {10, 24, 0},  {5, 12, 64},
                                 {7, 9, 40}, {1, 5, 16}, {21, 7, 1}, {2, 3, 48}, {6, 12, 192}, {4, 1, 5}};

class DevicePace : public testing::TestWithParam<Pace> {};
INSTANTIATE_TEST_SUITE_P(Late, DevicePace, testing::Values(Pace::transfers_first, Pace::caller_first),
                         [](const testing::TestParamInfo<Pace>& info) {
                           return info.param == Pace::transfers_first ? "TransfersFirst" : "CallerFirst";
                         });

template <class T>
void expect_exact(Pace pace, const DeviceSettings& settings) {
  Ranks ranks(pace, settings);
  for (const Case& the_case : cases) {
    LateSteps<T> steps(ranks, the_case);
    const auto seen = steps.run(3);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(num_wrong_sums<T>(seen[static_cast<std::size_t>(step)].data(), 0, steps.layout().num_elements(),
                                  the_case.num_leaves, step),
                0)
          << the_case.num_leaves << " leaves, " << the_case.num_blocks << " blocks, buckets of "
          << the_case.bucket_elements << ", step " << step;
    }
  }
}

TEST_P(DevicePace, ExactSumsHaveTheSerialBitsHoweverLateTheDeviceIs) {
  expect_exact<float>(GetParam(), {ReductionOrder::exact});
  expect_exact<double>(GetParam(), {ReductionOrder::exact});
}

TEST_P(DevicePace, ExactSumsHaveTheSerialBitsInManyRounds) {
  DeviceSettings settings{ReductionOrder::exact};
  settings.max_staging_bytes = 1;  // rounds of 64 elements
  expect_exact<float>(GetParam(), settings);
}

TEST_P(DevicePace, FastSumsAreRightWithinRounding) {
  Ranks ranks(GetParam(), {ReductionOrder::fast});
  for (const Case& the_case : cases) {
    LateSteps<float> floats(ranks, the_case);
    LateSteps<double> doubles(ranks, the_case);
    const auto seen_floats = floats.run(3);
    const auto seen_doubles = doubles.run(3);
    for (int step = 0; step < 3; ++step) {
      const auto place = static_cast<std::size_t>(step);
      EXPECT_EQ(num_far_sums(seen_floats[place], the_case.num_leaves, step), 0) << the_case.num_leaves << " leaves";
      EXPECT_EQ(num_far_sums(seen_doubles[place], the_case.num_leaves, step), 0) << the_case.num_leaves << " leaves";
    }
  }
}

TEST_P(DevicePace, TransfersThatAreSlowToIssueStayInOrder) {
  Ranks ranks(GetParam());
  ranks.device->num_working_polls = 3;
  LateSteps<float> steps(ranks, {7, 9, 40});
  const auto seen = steps.run(2);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(
        num_wrong_sums<float>(seen[static_cast<std::size_t>(step)].data(), 0, steps.layout().num_elements(), 7, step),
        0);
  }
}

/// Every block has a slice of its own rank, and every rank one micro-batch.
FlatLayout even_layout() {
  FlatLayout layout;
  layout.num_blocks = session().num_ranks();
  layout.block_elements = 16;
  return layout;
}

/// The program of steps in which every rank has one micro-batch.
TreeProgram one_leaf_a_rank() {
  const int num_ranks = session().num_ranks();
  return make_tree_program(num_ranks, shares_of(num_ranks, num_ranks));
}

TEST(DeviceExchange, CallIsOrderedAfterTheCallersWorkAndBeforeWhatFollows) {
  Ranks ranks(Pace::transfers_first);
  const int num_ranks = session().num_ranks();
  const auto exchange = ranks.communicator->make_exchange(even_layout());
  std::vector<float> sums(16);
  exchange->reduce_slice(one_leaf_a_rank(), reinterpret_cast<std::byte*>(sums.data()));
  std::string messages;
  for (int other = 0; other < num_ranks; ++other) {
    if (other != session().rank()) messages += " receive " + std::to_string(other);
  }
  for (int other = 0; other < num_ranks; ++other) {
    if (other != session().rank()) messages += " send " + std::to_string(other);
  }
  const std::vector<std::string> expected = {"caller records",    "transfer waits",
                                             "group:" + messages, "tree " + std::to_string(num_ranks),
                                             "transfer records",  "caller waits"};
  EXPECT_EQ(ranks.device->log, expected);
  ranks.communicator->wait_for_device();
}

TEST(DeviceExchange, RangesThatStartEarlyMakeTheCallerWaitOnceAtTheEnd) {
  Ranks ranks(Pace::transfers_first, {ReductionOrder::fast});
  const int num_ranks = session().num_ranks();
  const auto exchange = ranks.communicator->make_exchange(even_layout());
  EXPECT_TRUE(exchange->overlaps());
  const TreeProgram program = one_leaf_a_rank();
  std::vector<float> sums(16);
  auto* const out = reinterpret_cast<std::byte*>(sums.data());
  for (int owner = num_ranks - 1; owner >= 0; --owner) {
    exchange->start_reduce(program, {owner * 16, (owner + 1) * 16}, out);
  }
  exchange->reduce_slice(program, out);
  std::vector<std::string> expected;
  for (int owner = num_ranks - 1; owner >= 0; --owner) {
    const std::string what = num_ranks == 1 ? "reduce_scatter" : "reduce " + std::to_string(owner);  // one has it all
    expected.insert(expected.end(), {"caller records", "transfer waits", "group: " + what, "transfer records"});
  }
  expected.emplace_back("caller waits");
  EXPECT_EQ(ranks.device->log, expected);
  ranks.communicator->wait_for_device();
}

TEST(DeviceExchange, EqualSlicesTravelInOneCall) {
  Ranks ranks(Pace::transfers_first, {ReductionOrder::fast});
  const auto exchange = ranks.communicator->make_exchange(even_layout());
  std::vector<float> sums(16);
  exchange->reduce_slice(one_leaf_a_rank(), reinterpret_cast<std::byte*>(sums.data()));
  exchange->publish_weights();
  EXPECT_EQ(std::count(ranks.device->log.begin(), ranks.device->log.end(), "group: reduce_scatter"), 1);
  EXPECT_EQ(std::count(ranks.device->log.begin(), ranks.device->log.end(), "group: all_gather"), 1);
  ranks.communicator->wait_for_device();
}

TEST(DeviceExchange, HostDoesNotWaitBeforeItIsAskedTo) {
  Ranks ranks(Pace::transfers_first);
  ranks.device->is_stalled = true;
  const auto exchange = ranks.communicator->make_exchange(even_layout());
  std::vector<float> sums(16);
  // With a device that stands still all calls return.
  exchange->reduce_slice(one_leaf_a_rank(), reinterpret_cast<std::byte*>(sums.data()));
  exchange->publish_weights();
  ranks.device->is_stalled = false;
  ranks.communicator->wait_for_device();
  ranks.communicator->wait_for_device();  // nothing is left: returns at once
}

TEST(DeviceExchange, MemoryGoesWhenNoTransferUsesItAnyMore) {
  Ranks ranks(Pace::transfers_first);
  auto exchange = ranks.communicator->make_exchange(even_layout());
  std::vector<float> sums(16);
  exchange->reduce_slice(one_leaf_a_rank(), reinterpret_cast<std::byte*>(sums.data()));
  exchange.reset();
  EXPECT_FALSE(ranks.device->was_released_busy);
  EXPECT_FALSE(ranks.device->was_aborted);
}

TEST(DeviceExchange, RangesThatLeaveAGapAreRefused) {
  Ranks ranks(Pace::transfers_first);
  FlatLayout layout = even_layout();
  layout.num_blocks *= 2;
  const auto exchange = ranks.communicator->make_exchange(layout);
  const TreeProgram program = one_leaf_a_rank();
  std::vector<float> sums(32);
  auto* const out = reinterpret_cast<std::byte*>(sums.data());
  EXPECT_THROW(exchange->start_reduce(program, {0, layout.num_elements() + 16}, out), std::logic_error);
  exchange->start_reduce(program, {0, 16}, out);
  EXPECT_THROW(exchange->reduce_slice(program, out), std::logic_error);
  ranks.communicator->wait_for_device();
}

}  // namespace
}  // namespace lockstep::test
