#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <ostream>
#include <span>

#include "runtime/comm/device_communicator.hpp"
#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "runtime/comm/shared_memory_communicator.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {

/// Every way the ranks of a test can talk to each other.
enum class Way {
  one_process,
  mpi,
  mpi_in_small_pieces,
  shared_memory,
  shared_memory_without_room,
  device  ///< a fake one, in exact order, that does at once what it is asked for
};

inline std::ostream& operator<<(std::ostream& stream, Way way) {
  constexpr const char* names[] = {"OneProcess", "Mpi", "MpiInSmallPieces", "SharedMemory", "SharedMemoryWithoutRoom",
                                   "Device"};
  return stream << names[static_cast<int>(way)];
}

inline std::unique_ptr<Communicator> make(
    Way way, Reporter report = [](const std::string&) {}) {
  switch (way) {
    case Way::one_process:
      return std::make_unique<OneProcessCommunicator>();
    case Way::mpi:
      return std::make_unique<MpiCommunicator>(session());
    case Way::mpi_in_small_pieces:
      return std::make_unique<MpiCommunicator>(session(), 1000);
    case Way::shared_memory:
      return std::make_unique<SharedMemoryCommunicator>(session(), report);
    case Way::shared_memory_without_room:
      return std::make_unique<SharedMemoryCommunicator>(session(), report, 4096);
    case Way::device:
      return std::make_unique<DeviceCommunicator>(session(), std::make_unique<FakeDevice>(session(), Pace::at_once),
                                                  DeviceSettings{ReductionOrder::exact});
  }
  return nullptr;
}

/// A number of repetitions for tests that look for races, cut short on a machine that is too busy for them.
class Repetitions {
 public:
  Repetitions(Communicator& ranks, int most) : ranks_(ranks), most_(most) {}

  /// **Collective**, the same on all ranks: true while there is another one to do.
  bool next() {
    constexpr int between_looks = 100;
    if (done_ % between_looks == 0) {
      char goes_on = std::chrono::steady_clock::now() - begin_ < std::chrono::seconds(3);
      ranks_.broadcast(std::as_writable_bytes(std::span(&goes_on, 1)), 0);
      if (done_ != 0 && goes_on == 0) return false;
    }
    return done_++ < most_;
  }
  int index() const { return done_ - 1; }

 private:
  Communicator& ranks_;
  int most_;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The same tests on each way.
class OnEveryWay : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (GetParam() == Way::one_process && session().num_ranks() > 1) GTEST_SKIP() << "has one rank only";
  }
};

#define LOCKSTEP_ON_EVERY_WAY(Suite)                                                            \
  INSTANTIATE_TEST_SUITE_P(                                                                     \
      Ways, Suite,                                                                              \
      testing::Values(Way::one_process, Way::mpi, Way::mpi_in_small_pieces, Way::shared_memory, \
                      Way::shared_memory_without_room, Way::device),                            \
      [](const testing::TestParamInfo<Way>& info) { return testing::PrintToString(info.param); })

}  // namespace lockstep::test
