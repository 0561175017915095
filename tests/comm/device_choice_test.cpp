// Which device a rank trains on, and the sentences of those that cannot have one.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/device_driver.hpp"
#include "runtime/comm/device_of_rank.hpp"
#include "runtime/comm/device_plugin.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/plan/error.hpp"
#include "tests/support/mpi_main.hpp"

namespace lockstep::test {
namespace {

void expect_refusal(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    }
  }
}

const DriverReport no_driver = {0, 0, "there is no driver"};

/// What choose_device() says on this rank, and what it reports.
struct Choice {
  std::optional<int> index;
  std::vector<std::string> lines;
};

Choice choose(DeviceKind kind, const DriverReport& driver) {
  MpiCommunicator control(session());
  Choice choice;
  choice.index = choose_device(control, kind, driver, [&](const std::string& line) { choice.lines.push_back(line); });
  return choice;
}

TEST(ChooseDevice, EachRankOfANodeTakesOneOfItsOwn) {
  for (const DeviceKind kind : {DeviceKind::automatic, DeviceKind::cuda}) {
    EXPECT_EQ(choose(kind, {8, 13000, ""}).index, session().local_rank());
    EXPECT_EQ(choose(kind, {1, 13000, ""}).index, 0) << "a launcher that shows each rank its own";
  }
}

TEST(ChooseDevice, MachineWithoutADeviceMeansTheCpuAndIsSaid) {
  const Choice choice = choose(DeviceKind::automatic, no_driver);
  EXPECT_FALSE(choice.index.has_value());
  const std::vector<std::string> expected = {"the run trains on the CPU: there is no driver"};
  EXPECT_EQ(choice.lines, session().rank() == 0 ? expected : std::vector<std::string>());
}

TEST(ChooseDevice, CpuMeansTheCpuWithoutAWord) {
  const Choice choice = choose(DeviceKind::cpu, {8, 13000, ""});
  EXPECT_FALSE(choice.index.has_value());
  EXPECT_TRUE(choice.lines.empty());
}

TEST(ChooseDevice, CudaWithoutADeviceIsRefusedWithTheReason) {
  expect_refusal([] { choose(DeviceKind::cuda, no_driver); },
                 {"no device can be used (there is no driver)", "--device cpu"});
}

TEST(ChooseDevice, RanksThatSeeNoneAmongOthersAreNamed) {
  const int num_ranks = session().num_ranks();
  if (num_ranks == 1) GTEST_SKIP() << "needs another rank";
  const bool is_last = session().rank() == num_ranks - 1;
  for (const DeviceKind kind : {DeviceKind::automatic, DeviceKind::cuda}) {
    expect_refusal(
        [&] {
          choose(kind, is_last ? no_driver : DriverReport{8, 13000, ""});
        },
        {"rank " + std::to_string(num_ranks - 1) + " sees no device, but the other ranks do"});
  }
}

TEST(ChooseDevice, MoreRanksThanDevicesAreRefused) {
  if (session().num_ranks() < 3) GTEST_SKIP() << "needs three ranks";
  expect_refusal(
      [] {
        choose(DeviceKind::automatic, {2, 13000, ""});
      },
      {"rank 2", "more ranks than devices on this node: local rank 2 sees 2 devices",
       "start at most 2 ranks per node"});
}

TEST(MakeCommunicator, OnTheCpuLoadsNothingAndChoosesAsBefore) {
  const auto ranks =
      make_communicator(session(), CommunicatorKind::automatic, DeviceKind::cpu, {}, [](const std::string&) {});
  EXPECT_EQ(ranks->name(), make()->name());
  EXPECT_FALSE(ranks->device_index().has_value());
}

TEST(DeviceDriver, MachineWithoutOneSaysSo) {
  const DriverReport report = ask_device_driver("libno_such_driver.so.1");
  EXPECT_EQ(report.num_devices, 0);
  EXPECT_EQ(report.cuda_version, 0);
  EXPECT_EQ(report.why_no_device, "there is no NVIDIA driver on this machine (libno_such_driver.so.1 is not found)");
}

TEST(DeviceDriver, CountsWhatTheProcessSees) {
  const DriverReport report = ask_device_driver(FAKE_DRIVER_WITH_DEVICES);
  EXPECT_EQ(report.num_devices, 3);
  EXPECT_EQ(report.cuda_version, 12040);
  EXPECT_EQ(report.why_no_device, "");
}

TEST(DeviceDriver, OneWithoutDevicesOrBrokenSaysSo) {
  const DriverReport none = ask_device_driver(FAKE_DRIVER_WITHOUT_DEVICES);
  EXPECT_EQ(none.num_devices, 0);
  EXPECT_NE(none.why_no_device.find("CUDA_VISIBLE_DEVICES"), std::string::npos) << none.why_no_device;
  const DriverReport broken = ask_device_driver(FAKE_DRIVER_BROKEN);
  EXPECT_EQ(broken.num_devices, 0);
  EXPECT_NE(broken.why_no_device.find("does not start (error 999"), std::string::npos) << broken.why_no_device;
  const DriverReport other = ask_device_driver(FAKE_PLUGIN);
  EXPECT_NE(other.why_no_device.find("is not a driver"), std::string::npos) << other.why_no_device;
}

TEST(DeviceDriver, OneOfAnOlderMajorVersionIsRefused) {
  EXPECT_NO_THROW(check_driver_version(13000, 13000));
  EXPECT_NO_THROW(check_driver_version(13000, 13020));
  EXPECT_NO_THROW(check_driver_version(14010, 13000));
  expect_refusal([] { check_driver_version(12040, 13000); },
                 {"too old", "it runs CUDA 12.4, this program was built for CUDA 13.0", "update the driver"});
}

TEST(DevicePlugin, OneOfThisBuildIsLoadedAndItsErrorsAreCaught) {
  const DevicePlugin plugin = DevicePlugin::load(FAKE_PLUGIN);
  EXPECT_EQ(plugin.cuda_version(), 13000);
  try {
    plugin.make_device(5);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "device 5 is a fake");
  }
}

TEST(DevicePlugin, OneOfAnotherBuildIsRefused) {
  expect_refusal([] { DevicePlugin::load(FAKE_PLUGIN_OF_ANOTHER_BUILD); },
                 {"belongs to another build (0.0.9, a compiler of old", "build both together"});
}

TEST(DevicePlugin, LibraryThatIsNoneIsRefused) {
  expect_refusal([] { DevicePlugin::load(FAKE_DRIVER_BROKEN); }, {"is not a plug-in of Lockstep"});
}

TEST(DevicePlugin, OneThatDoesNotLoadIsRefusedWithTheLoadersReason) {
  expect_refusal([] { DevicePlugin::load("/no/such/folder/liblockstep_cuda.so"); },
                 {"/no/such/folder/liblockstep_cuda.so, could not be loaded", "No such file", "--device cpu"});
}

TEST(DevicePlugin, VariableNamesOne) {
  setenv("LOCKSTEP_CUDA_PLUGIN", FAKE_PLUGIN, 1);
  EXPECT_TRUE(DevicePlugin::is_expected());
  EXPECT_NO_THROW(DevicePlugin::load());
  setenv("LOCKSTEP_CUDA_PLUGIN", FAKE_PLUGIN_OF_ANOTHER_BUILD, 1);
  expect_refusal([] { DevicePlugin::load(); }, {"another build", "LOCKSTEP_CUDA_PLUGIN"});
  unsetenv("LOCKSTEP_CUDA_PLUGIN");
}

TEST(DevicePlugin, ProgramWithoutOneSaysHowToGetIt) {
  // A bare name is looked for by the loader, as where no plug-in stands beside the program.
  expect_refusal([] { DevicePlugin::load("liblockstep_cuda_that_is_not_there.so"); },
                 {DevicePlugin::is_expected() ? "was not found" : "was built without CUDA"});
}

TEST(Cases, C094DevicePerRank) {
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(device_of_rank(1, rank, DeviceSharing::refused), 0);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(device_of_rank(4, rank, DeviceSharing::refused), rank);
  try {
    device_of_rank(4, 5, DeviceSharing::refused);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("more ranks than devices"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device_of_rank(4, 5, DeviceSharing::allowed), 1);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(device_of_rank(0, rank, DeviceSharing::refused), -1);
}

}  // namespace
}  // namespace lockstep::test
