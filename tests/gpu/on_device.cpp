#include "tests/gpu/on_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "runtime/comm/device_driver.hpp"
#include "runtime/comm/device_plugin.hpp"
#include "runtime/train/numerics.hpp"
#include "tests/comm/fake_device.hpp"
#include "tests/gpu/shared_device.hpp"

namespace lockstep::test {
namespace {

/// Why the ranks of this test have no device; empty: they have. The same on all of them.
std::string why_no_device() {
  const DriverReport driver = ask_device_driver();
  const auto everybody = make(CommunicatorKind::mpi);
  for (const std::string& why : gather_texts(*everybody, driver.num_devices > 0 ? "" : driver.why_no_device))
    if (!why.empty()) return why;
  return {};
}

/// Passes devices in host memory for the host, which they are to LibTorch.
class HostMemory final : public Communicator {
 public:
  explicit HostMemory(std::unique_ptr<Communicator> devices) : devices_(std::move(devices)) {}

  int rank() const override { return devices_->rank(); }
  int num_ranks() const override { return devices_->num_ranks(); }
  int local_rank() const override { return devices_->local_rank(); }
  std::string name() const override { return devices_->name(); }
  void wait_for_device() override { devices_->wait_for_device(); }
  void barrier() override { devices_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { devices_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override {
    devices_->all_gather(mine, counts, all);
  }
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override {
    return devices_->make_exchange(layout);
  }

 private:
  std::unique_ptr<Communicator> devices_;
};

std::unique_ptr<Communicator> shared(const MpiSession& session, std::unique_ptr<DeviceApi> device, c10::Device where,
                                     const DeviceSettings& settings) {
  return std::make_unique<DeviceCommunicator>(
      session, std::make_unique<SharedDevice>(session, std::move(device), where), settings);
}

Course course_of(TrainingRun& run) {
  Course course;
  TrainerEvents events;
  events.on_message = [&](const std::string& message) { course.messages.push_back(message); };
  run.advance(course.result, -1, events);
  course.weights = weights_of(run.model());
  return course;
}

double largest(const std::vector<double>& values) {
  double most = 0.0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (std::size_t step = 0; step < values.size(); ++step)
    EXPECT_NEAR(values[step], expected[step], tolerance * largest(expected)) << what << ", step " << step + 1;
}

}  // namespace

bool cpu_stands_in() {
  const char* const device = std::getenv("LOCKSTEP_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cpu";
}

void OnDevice::SetUp() {
  use_deterministic_algorithms();
  if (cpu_stands_in()) return;
  const std::string why = why_no_device();
  if (!why.empty()) GTEST_SKIP() << "no device: " << why;
  DevicePlugin::load();  // LibTorch looks for its CUDA half once, when it is first used
}

std::unique_ptr<Communicator> make_on_device(const MpiSession& session, const DeviceSettings& settings) {
  if (!cpu_stands_in() && session.num_ranks() <= ask_device_driver().num_devices)
    return make_communicator(session, CommunicatorKind::automatic, DeviceKind::cuda, settings,
                             [](const std::string&) {});
  if (cpu_stands_in())
    return std::make_unique<HostMemory>(
        shared(session, std::make_unique<FakeDevice>(session, Pace::at_once), at::kCPU, settings));
  const int index = session.rank() % ask_device_driver().num_devices;
  return shared(session, DevicePlugin::load().make_device(index),
                c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)), settings);
}

void on_first_devices(int num_ranks, const DeviceSettings& settings, const std::function<void(Communicator&)>& work) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(session().comm(), session().rank() < num_ranks ? 0 : MPI_UNDEFINED, session().rank(), &part);
  if (part == MPI_COMM_NULL) return;
  try {
    const MpiSession some(part);
    const auto communicator = make_on_device(some, settings);
    work(*communicator);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  MPI_Comm_free(&part);
}

std::map<std::string, at::Tensor> weights_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : module.named_parameters()) weights.emplace(item.key(), item.value().detach().cpu().clone());
  for (const auto& item : module.named_buffers()) weights.emplace(item.key(), item.value().detach().cpu().clone());
  return weights;
}

Course on_cpu(const TrainingCase& what) {
  OneProcessCommunicator alone;
  TrainingRun run(what, alone);
  return course_of(run);
}

std::optional<Course> on_devices(int num_ranks, TrainingCase what, const DeviceSettings& settings,
                                 const std::function<void(TrainerOptions&, Communicator&)>& settle) {
  std::optional<Course> course;
  on_first_devices(num_ranks, settings, [&](Communicator& devices) {
    if (settle) settle(what.options, devices);
    TrainingRun run(what, devices);
    course = course_of(run);
  });
  return course;
}

Course on_all_devices(const TrainingCase& what, const DeviceSettings& settings,
                      const std::function<void(TrainerOptions&, Communicator&)>& settle) {
  const auto course = on_devices(session().num_ranks(), what, settings, settle);
  if (!course) throw std::runtime_error("there is nothing to compare");
  return *course;
}

void expect_near(const Course& course, const Course& expected, double tolerance, const std::string& name) {
  expect_near(course.result.losses, expected.result.losses, tolerance, name + ", losses");
  expect_near(course.result.norms, expected.result.norms, tolerance, name + ", gradient norms");
  EXPECT_EQ(course.result.rates, expected.result.rates) << name;
  for (const auto& [tensor, values] : expected.weights) {
    const at::Tensor difference = (course.weights.at(tensor) - values).abs().to(at::kDouble);
    const double scale = std::max(values.abs().max().item<double>(), 1e-3);
    EXPECT_LE(difference.max().item<double>(), tolerance * scale) << name << ", " << tensor;
  }
}

}  // namespace lockstep::test
