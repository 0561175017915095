#include "drivers/command_line.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep {
namespace {

void give_back_memory() { throw std::runtime_error("the device has gone\nwith a page of addresses"); }

/// As LibTorch's tensors, whose memory cannot be given back to a device that has failed.
class ThrowsWhenItGoes {
 public:
  ~ThrowsWhenItGoes() { give_back_memory(); }
};

void train_on_a_device_that_fails() {
  const ThrowsWhenItGoes tensor;
  throw std::runtime_error("a kernel has failed");
}

TEST(CommandLine, TellsAnErrorThatNobodyCanCatch) {
  const auto run = [] {
    tell_what_nobody_catches("drill");
    train_on_a_device_that_fails();
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1),
              "^drill: ended by an error that nothing could catch: the device has gone\n$");
}

}  // namespace
}  // namespace lockstep
