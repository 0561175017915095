// What the plug-in does on a real device, next to what the host does: skipped where this machine has none, or fewer
// than ranks. LibTorch is asked for its current stream only, which is the default stream here: so are our copies.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/device_communicator.hpp"
#include "runtime/comm/device_driver.hpp"
#include "runtime/comm/device_plugin.hpp"
#include "runtime/comm/tree_kernel.hpp"
#include "runtime/plan/error.hpp"
#include "tests/comm/made_gradients.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {
namespace {

const std::optional<std::string>& why_skipped() {
  static const std::optional<std::string> reason = []() -> std::optional<std::string> {
    const DriverReport driver = ask_device_driver();
    if (driver.num_devices == 0) return driver.why_no_device;
    if (driver.num_devices < session().num_local_ranks()) {
      return text(driver.num_devices, " devices are too few for ", session().num_local_ranks(), " ranks");
    }
    return std::nullopt;
  }();
  return reason;
}

std::unique_ptr<DeviceApi> make_device() { return DevicePlugin::load().make_device(session().local_rank()); }

class Device : public testing::Test {
 protected:
  void SetUp() override {
    if (why_skipped()) GTEST_SKIP() << *why_skipped();
  }
};

void check(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

/// Copies in the caller's queue, which the host does not wait for: pinned memory on the host's side.
template <class T>
class PinnedValues {
 public:
  explicit PinnedValues(std::int64_t count) : count_(count) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, num_bytes() + 1));
    values_ = static_cast<T*>(memory);
    std::fill_n(values_, count_, T{0});
  }
  ~PinnedValues() { cudaFreeHost(values_); }
  PinnedValues(const PinnedValues&) = delete;
  PinnedValues& operator=(const PinnedValues&) = delete;

  T* data() { return values_; }
  void copy_to(std::byte* device) { check(cudaMemcpyAsync(device, values_, num_bytes(), cudaMemcpyHostToDevice)); }
  void copy_from(const std::byte* device) {
    check(cudaMemcpyAsync(values_, device, num_bytes(), cudaMemcpyDeviceToHost));
  }

 private:
  std::size_t num_bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  std::int64_t count_;
  T* values_ = nullptr;
};

/// The kernel against the host's, over the inputs that `num_ranks` ranks with `num_leaves` micro-batches bring.
template <class T>
void expect_the_hosts_bits(DeviceApi& device, std::int64_t num_leaves, int num_ranks, std::int64_t num_elements) {
  const TreeProgram program = make_tree_program(num_leaves, shares_of(num_leaves, num_ranks));
  const std::size_t num_bytes = static_cast<std::size_t>(num_elements) * sizeof(T);
  const DeviceBuffer memory(device, num_bytes * static_cast<std::size_t>(program.num_inputs + 1));
  std::vector<std::vector<T>> values;
  std::vector<const std::byte*> on_host;
  std::vector<const std::byte*> on_device;
  for (int input = 0; input < program.num_inputs; ++input) {
    std::vector<T>& made = values.emplace_back();
    for (std::int64_t i = 0; i < num_elements; ++i) made.push_back(gradient_of<T>(input, i, 3));
    std::byte* const place = memory.data() + num_bytes * static_cast<std::size_t>(input);
    check(cudaMemcpy(place, made.data(), num_bytes, cudaMemcpyHostToDevice));
    on_device.push_back(place);
  }
  for (const std::vector<T>& made : values) on_host.push_back(reinterpret_cast<const std::byte*>(made.data()));
  std::vector<T> expected(static_cast<std::size_t>(num_elements), T{7});
  evaluate_tree(program, type_of<T>(), on_host, num_elements, reinterpret_cast<std::byte*>(expected.data()));

  std::byte* const out = memory.data() + num_bytes * static_cast<std::size_t>(program.num_inputs);
  device.evaluate_tree(program, type_of<T>(), on_device, num_elements, out);
  check(cudaDeviceSynchronize());
  std::vector<T> seen(expected.size());
  check(cudaMemcpy(seen.data(), out, num_bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(seen.data(), expected.data(), num_bytes), 0)
      << num_leaves << " leaves on " << num_ranks << " ranks, " << num_elements << " elements";

  if (program.num_inputs == 0) return;
  auto* const in_place = const_cast<std::byte*>(on_device.front());
  device.evaluate_tree(program, type_of<T>(), on_device, num_elements, in_place);
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(seen.data(), in_place, num_bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(seen.data(), expected.data(), num_bytes), 0) << "in place, " << num_leaves << " leaves";
}

TEST_F(Device, KernelOfTheTreeHasTheHostsBits) {
  const auto device = make_device();
  for (const std::int64_t num_leaves : {0, 1, 2, 3, 5, 7, 10, 21, 64, 65, 130, 700}) {
    for (const int num_ranks : {1, 2, 3, 8, 100}) {
      expect_the_hosts_bits<float>(*device, num_leaves, num_ranks, 1000 + num_leaves);
      expect_the_hosts_bits<double>(*device, num_leaves, num_ranks, 257);
    }
  }
  expect_the_hosts_bits<float>(*device, 5, 3, 10'000'001);
}

struct Steps {
  ReductionOrder order;
  std::int64_t num_leaves;
  std::int64_t num_blocks;
  std::int64_t bucket_elements;  ///< 0: nothing starts early
  std::int64_t max_staging_bytes = std::int64_t{256} << 20;
};

/// Three steps, which the host asks for without waiting; the sums as the caller's queue saw them after each.
template <class T>
void expect_right_sums(const Steps& steps) {
  DeviceSettings settings{steps.order, 60.0};
  settings.max_staging_bytes = steps.max_staging_bytes;
  DeviceCommunicator ranks(session(), make_device(), settings);
  const FlatLayout layout = layout_for<T>(ranks, steps.num_leaves, steps.num_blocks, 1024);
  const auto exchange = ranks.make_exchange(layout);
  const std::vector<LeafRange> shares = shares_of(steps.num_leaves, ranks.num_ranks());
  const LeafRange mine = shares[static_cast<std::size_t>(ranks.rank())];
  const TreeProgram program = make_tree_program(steps.num_leaves, shares);
  const std::int64_t num_elements = layout.num_elements();
  const Slice slice = exchange->slice();
  constexpr int num_steps = 3;
  std::vector<std::unique_ptr<PinnedValues<T>>> gradients;
  std::vector<std::unique_ptr<PinnedValues<T>>> seen;
  const DeviceBuffer sums(ranks.device(), static_cast<std::size_t>(slice.size()) * sizeof(T));
  for (int step = 0; step < num_steps; ++step) {
    const std::size_t first = gradients.size();
    for (int slot = 0; slot < layout.num_slots; ++slot) {
      gradients.push_back(std::make_unique<PinnedValues<T>>(num_elements));
    }
    fill_slots<T>([&](int slot) { return gradients[first + static_cast<std::size_t>(slot)]->data(); }, num_elements,
                  steps.num_leaves, mine, step);
    seen.push_back(std::make_unique<PinnedValues<T>>(num_elements));
  }
  for (int step = 0; step < num_steps; ++step) {
    for (int slot = 0; slot < layout.num_slots; ++slot) {
      gradients[static_cast<std::size_t>(step * layout.num_slots + slot)]->copy_to(exchange->gradient_slot(slot));
    }
    for (std::int64_t end = num_elements; steps.bucket_elements > 0 && end > 0; end -= steps.bucket_elements) {
      exchange->start_reduce(program, {std::max<std::int64_t>(0, end - steps.bucket_elements), end}, sums.data());
    }
    exchange->reduce_slice(program, sums.data());
    check(cudaMemcpyAsync(exchange->weights() + slice.begin * static_cast<std::int64_t>(sizeof(T)), sums.data(),
                          static_cast<std::size_t>(slice.size()) * sizeof(T), cudaMemcpyDeviceToDevice));
    exchange->publish_weights();
    seen[static_cast<std::size_t>(step)]->copy_from(exchange->weights());
  }
  ranks.wait_for_device();
  check(cudaDeviceSynchronize());
  for (int step = 0; step < num_steps; ++step) {
    const T* const values = seen[static_cast<std::size_t>(step)]->data();
    if (steps.order == ReductionOrder::exact) {
      EXPECT_EQ(num_wrong_sums<T>(values, 0, num_elements, steps.num_leaves, step), 0)
          << steps.num_leaves << " leaves, buckets of " << steps.bucket_elements << ", step " << step;
      continue;
    }
    std::int64_t num_far = 0;
    for (std::int64_t i = 0; i < num_elements; ++i) {
      double exact = 0.0;
      double magnitude = 0.0;
      for (std::int64_t leaf = 0; leaf < steps.num_leaves; ++leaf) {
        exact += static_cast<double>(gradient_of<T>(leaf, i, step));
        magnitude += std::abs(static_cast<double>(gradient_of<T>(leaf, i, step)));
      }
      const double allowed = static_cast<double>(steps.num_leaves) * std::numeric_limits<T>::epsilon() * magnitude;
      num_far += !(std::abs(static_cast<double>(values[i]) - exact) <= allowed);
    }
    EXPECT_EQ(num_far, 0) << steps.num_leaves << " leaves, buckets of " << steps.bucket_elements << ", step " << step;
  }
}

TEST_F(Device, ExactSumsHaveTheSerialBits) {
  for (const Steps& steps : {Steps{ReductionOrder::exact, 7, 33, 0}, Steps{ReductionOrder::exact, 7, 33, 5000},
                             Steps{ReductionOrder::exact, 1, 8, 3000}, Steps{ReductionOrder::exact, 10, 512, 0},
                             Steps{ReductionOrder::exact, 5, 64, 0, 4096}}) {
    expect_right_sums<float>(steps);
    expect_right_sums<double>(steps);
  }
}

TEST_F(Device, FastSumsAreRightWithinRounding) {
  for (const Steps& steps : {Steps{ReductionOrder::fast, 7, 33, 0}, Steps{ReductionOrder::fast, 7, 33, 5000},
                             Steps{ReductionOrder::fast, 1, 8, 3000}, Steps{ReductionOrder::fast, 10, 512, 0}}) {
    expect_right_sums<float>(steps);
    expect_right_sums<double>(steps);
  }
}

TEST_F(Device, KnowsItselfAndRefusesWhatDoesNotExist) {
  const auto device = make_device();
  EXPECT_EQ(device->index(), session().local_rank());
  EXPECT_NE(device->name().find("NCCL"), std::string::npos) << device->name();
  EXPECT_FALSE(device->identity().empty());
  EXPECT_THROW(DevicePlugin::load().make_device(ask_device_driver().num_devices), Error);
  EXPECT_THROW(device->allocate(std::size_t{1} << 50), Error);
}

}  // namespace
}  // namespace lockstep::test
