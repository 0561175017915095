#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/train/broken_training.hpp"

namespace lockstep::test {

/// The devices of a test's ranks: one each through NCCL where there are as many, else shared. Tests that have none
/// skip themselves and say why. With LOCKSTEP_TEST_DEVICE=cpu devices in host memory stand in, which tries the tests
/// themselves.
class OnDevice : public testing::Test {
 protected:
  /// Deterministic algorithms, and no TF32: before anything is computed on a device.
  void SetUp() override;
};

bool cpu_stands_in();

/// **Collective** over `session`. Its ranks, on devices.
std::unique_ptr<Communicator> make_on_device(const MpiSession& session, const DeviceSettings& settings);

/// **Collective** over all ranks of the test. Runs `work` on the first `num_ranks` of them, on devices. What it
/// throws is a failure of the test, and the rank goes on with the others.
void on_first_devices(int num_ranks, const DeviceSettings& settings, const std::function<void(Communicator&)>& work);

/// What a training did.
struct Course {
  TrainingResult result;
  std::map<std::string, at::Tensor> weights;  ///< in host memory, buffers too
  std::vector<std::string> messages;
};

/// Parameters and buffers, in host memory.
std::map<std::string, at::Tensor> weights_of(const torch::nn::Module& module);

/// The course of a training on the CPU of one process. Local.
Course on_cpu(const TrainingCase& what);

/// **Collective**. The course on the devices of the first `num_ranks` ranks; nothing on the others.
std::optional<Course> on_devices(int num_ranks, TrainingCase what, const DeviceSettings& settings,
                                 const std::function<void(TrainerOptions&, Communicator&)>& settle = {});

/// **Collective**. The same on the devices of all ranks. Throws where the training did.
Course on_all_devices(const TrainingCase& what, const DeviceSettings& settings,
                      const std::function<void(TrainerOptions&, Communicator&)>& settle = {});

/// The settings of a run that is the same on any number of devices.
inline DeviceSettings exact_order() { return {ReductionOrder::exact}; }

/// Every loss, gradient norm and weight within `tolerance` of the expected one, relative to the largest of its kind.
void expect_near(const Course& course, const Course& expected, double tolerance, const std::string& name);

}  // namespace lockstep::test
