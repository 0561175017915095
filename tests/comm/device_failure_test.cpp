// What becomes of ranks that wait, on the device or on the host, for one that does not come, or whose network fails.

#include <gtest/gtest.h>
#include <mpi.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/device_communicator.hpp"
#include "runtime/plan/error.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/comm/made_gradients.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {
namespace {

bool is_last() { return session().rank() == session().num_ranks() - 1; }

/// One rank each, one micro-batch each. Making the exchange takes the first two operations.
class DeviceFailure : public testing::Test {
 protected:
  void make_ranks(double timeout_seconds) {
    auto made = std::make_unique<FakeDevice>(session(), Pace::transfers_first);
    device_ = made.get();
    communicator_ = std::make_unique<DeviceCommunicator>(
        session(), std::move(made), DeviceSettings{ReductionOrder::exact, timeout_seconds}, hurried_clock(hurries_));
    FlatLayout layout;
    layout.num_blocks = session().num_ranks();
    layout.block_elements = 16;
    exchange_ = communicator_->make_exchange(layout);
    sums_.resize(16);
  }

  void reduce() {
    const int num_ranks = session().num_ranks();
    exchange_->reduce_slice(make_tree_program(num_ranks, shares_of(num_ranks, num_ranks)),
                            reinterpret_cast<std::byte*>(sums_.data()));
  }

  /// The text of the Error that waiting ends with; empty without one.
  std::string wait() {
    try {
      communicator_->wait_for_device();
      return {};
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failed);
      return error.what();
    }
  }

  std::shared_ptr<bool> hurries_ = std::make_shared<bool>(false);
  FakeDevice* device_ = nullptr;
  std::unique_ptr<DeviceCommunicator> communicator_;
  std::unique_ptr<FlatExchange> exchange_;
  std::vector<float> sums_;
};

void expect_in(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

TEST_F(DeviceFailure, RankThatDoesNotComeIsNamedByAllOthers) {
  make_ranks(60.0);
  const int num_ranks = session().num_ranks();
  reduce();
  EXPECT_EQ(wait(), "");
  if (num_ranks > 1 && is_last()) {
    MPI_Barrier(session().comm());  // it is somewhere else for as long as the others wait
    return;
  }
  *hurries_ = true;
  device_->is_stalled = true;  // with one rank nothing else could hang
  reduce();
  const std::string message = wait();
  if (num_ranks == 1) {
    expect_in(message, "all ranks came to operation 4 (sum of the gradients), which did not end");
  } else {
    expect_in(message, "rank " + std::to_string(num_ranks - 1) +
                           " did not come to operation 4 (sum of the gradients) and does not answer");
  }
  EXPECT_TRUE(message.find("not done within 60 s, --communication-timeout") != std::string::npos ||
              message.find("another rank has given up waiting") != std::string::npos)
      << message;
  expect_in(message, "start the run again");
  EXPECT_TRUE(device_->was_aborted);
  EXPECT_EQ(wait(), message) << "whoever asks again is told the same";
  try {
    reduce();
    ADD_FAILURE() << "nothing can be exchanged after that";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
  if (num_ranks > 1) MPI_Barrier(session().comm());
}

TEST_F(DeviceFailure, RankThatIsAtAnotherOperationIsNamed) {
  make_ranks(60.0);
  *hurries_ = true;
  device_->is_stalled = true;
  if (is_last()) {
    exchange_->publish_weights();
  } else {
    reduce();
  }
  const std::string message = wait();
  if (session().num_ranks() == 1) {
    expect_in(message, "all ranks came to operation 3 (exchange of the weights), which did not end");
  } else if (is_last()) {
    expect_in(message,
              "the ranks did not all come to operation 3 (exchange of the weights): rank 0 is at operation 3 "
              "(sum of the gradients)");
  } else {
    expect_in(message, "the ranks did not all come to operation 3 (sum of the gradients): rank " +
                           std::to_string(session().num_ranks() - 1) +
                           " is at operation 3 (exchange of the weights)");
  }
}

TEST_F(DeviceFailure, RankThatDoesNotComeToACallOfTheHostIsNamed) {
  const int num_ranks = session().num_ranks();
  if (num_ranks == 1) GTEST_SKIP() << "one rank waits for no other";
  std::vector<std::byte> bytes(1);
  std::vector<std::byte> of_all(static_cast<std::size_t>(num_ranks));
  const std::vector<std::size_t> counts(of_all.size(), 1);
  const std::vector<std::function<void()>> calls = {[&] { communicator_->barrier(); },
                                                    [&] { communicator_->broadcast(bytes, 0); },
                                                    [&] { communicator_->all_gather(bytes, counts, of_all); }};
  for (const auto& call : calls) {
    *hurries_ = false;
    exchange_.reset();
    make_ranks(60.0);
    *hurries_ = true;
    if (!is_last()) {
      try {
        call();
        ADD_FAILURE() << "nobody noticed that a rank is missing";
      } catch (const Error& error) {
        expect_in(error.what(), "rank " + std::to_string(num_ranks - 1) + " did not come to operation");
        expect_in(error.what(), "(agreement of the hosts) and does not answer");
      }
      EXPECT_THROW(communicator_->barrier(), Error) << "whoever comes again is told again";
    }
    MPI_Barrier(session().comm());
  }
}

TEST_F(DeviceFailure, NetworkErrorOfOneRankEndsTheWaitOfAll) {
  make_ranks(0.0);  // nobody would give up by itself
  device_->is_stalled = true;
  reduce();
  if (is_last()) device_->failure = "NCCL: remote process exited";
  const std::string message = wait();
  expect_in(message, "all ranks came to operation 3 (sum of the gradients), which did not end");
  expect_in(message, is_last() ? "the network failed: NCCL: remote process exited" : "another rank has given up");
  EXPECT_TRUE(device_->was_aborted);
}

TEST_F(DeviceFailure, RankThatUnwindsDoesNotWaitForTheOthers) {
  make_ranks(0.0);
  *hurries_ = true;
  device_->is_stalled = true;
  reduce();
  EXPECT_THROW(
      {
        const auto unwound = std::move(exchange_);
        throw Error(ErrorKind::failed, "this rank broke");
      },
      Error);
  EXPECT_TRUE(device_->was_aborted) << "memory goes after the network was given up";
}

TEST(DeviceConnection, DeviceThatTwoRanksHaveIsRefused) {
  const int num_ranks = session().num_ranks();
  auto device = std::make_unique<FakeDevice>(session(), Pace::transfers_first);
  device->identity_text = session().rank() == 0 ? "" : "GPU 7";
  if (num_ranks < 3) {
    EXPECT_NO_THROW(DeviceCommunicator(session(), std::move(device), {}));
    return;
  }
  try {
    const DeviceCommunicator communicator(session(), std::move(device), {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    expect_in(error.what(), num_ranks == 3 ? "ranks 1, 2 have the same device, GPU 7"
                                           : "ranks 1, 2, 3 have the same device, GPU 7");
  }
}

std::string connection_error(const std::function<void(FakeDevice&)>& spoil) {
  auto device = std::make_unique<FakeDevice>(session(), Pace::transfers_first);
  if (is_last()) spoil(*device);
  try {
    const DeviceCommunicator communicator(session(), std::move(device), {ReductionOrder::fast, 60.0},
                                          hurried_clock(std::make_shared<bool>(true)));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(DeviceConnection, FailureOfOneRankIsThrownByAll) {
  const std::string message = connection_error([](FakeDevice& device) { device.failure = "no route to host"; });
  expect_in(message, "the devices of the ranks could not be connected (no route to host)");
  expect_in(message, "NCCL_SOCKET_IFNAME");
  if (session().num_ranks() > 1) expect_in(message, "rank " + std::to_string(session().num_ranks() - 1) + ": ");
}

TEST(DeviceConnection, OneThatTakesTooLongIsGivenUp) {
  const std::string message = connection_error([](FakeDevice& device) { device.num_working_polls = 1 << 30; });
  expect_in(message, "it took more than 60 s, --communication-timeout");
}

TEST(RollCall, DescribesWhoIsMissing) {
  const Operation mine{14, OperationKind::reduce};
  const Operation other{12, OperationKind::publish};
  EXPECT_EQ(describe_absence({mine, mine, mine}, mine), "");
  EXPECT_EQ(describe_absence({mine, std::nullopt, mine}, mine),
            "rank 1 did not come to operation 14 (sum of the gradients) and does not answer");
  EXPECT_EQ(describe_absence({std::nullopt, mine, std::nullopt}, mine),
            "ranks 0, 2 did not come to operation 14 (sum of the gradients) and do not answer");
  EXPECT_EQ(
      describe_absence({mine, other}, mine),
      "the ranks did not all come to operation 14 (sum of the gradients): rank 1 is at operation 12 (exchange of "
      "the weights)");
  EXPECT_EQ(
      describe_absence({mine, other, std::nullopt}, mine),
      "the ranks did not all come to operation 14 (sum of the gradients): rank 1 is at operation 12 (exchange of "
      "the weights); rank 2 does not answer");
}

}  // namespace
}  // namespace lockstep::test
