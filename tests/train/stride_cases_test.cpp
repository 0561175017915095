// Tensors that do not lie in memory as they are read: a checkpoint knows their values alone.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "runtime/train/state_snapshot.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

/// Parameters and buffers that are views. Their values are those of the memory behind them, times `times`.
class StridedModel final : public torch::nn::Module {
 public:
  explicit StridedModel(std::int64_t times) {
    const auto values = [&](std::int64_t count, at::ScalarType type = at::kFloat) {
      return (at::arange(count, at::kLong) * times).to(type);
    };
    register_parameter("transposed", values(6).reshape({2, 3}).t());
    register_parameter("channels_last", values(24).reshape({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    register_parameter("odd_rows", values(12).reshape({6, 2}).slice(0, 1, 6, 2), /*requires_grad=*/false);
    register_buffer("statistics", values(12).reshape({6, 2}).slice(0, 1, 6, 2));
    register_buffer("counters", values(6, at::kLong).reshape({2, 3}).t());
  }

  at::Tensor loss(const at::Tensor& pulls) const {
    at::Tensor sum = pulls.sum() * 0;
    for (const at::Tensor& parameter : parameters())
      if (parameter.requires_grad()) sum = sum + pulls.mean() * parameter.sum();
    return sum;
  }

  /// All tensors by section and name.
  std::map<std::pair<std::string, std::string>, at::Tensor> tensors() const {
    std::map<std::pair<std::string, std::string>, at::Tensor> out;
    for (const auto& item : named_parameters()) out[{"weights", item.key()}] = item.value().detach();
    for (const auto& item : named_buffers()) out[{"buffers", item.key()}] = item.value();
    return out;
  }
};

/// Adds a parameter whose rows share their memory; nothing can be copied into such a tensor.
class ExpandedModel final : public torch::nn::Module {
 public:
  explicit ExpandedModel(std::int64_t times)
      : weight(
            register_parameter("expanded", (at::arange(4) * times).to(at::kFloat).reshape({4, 1}).expand({4, 3}))) {}

  at::Tensor loss(const at::Tensor& pulls) const { return pulls.mean() * weight.sum(); }

  at::Tensor weight;
};

template <class Model>
Trainer trainer_of(Model& model, const Dataset& data, Communicator& communicator,
                   CheckpointReader* resume_from = nullptr) {
  return Trainer(
      model, [&model](const Batch& batch) -> Loss { return model.loss(batch.inputs); }, data, descent(0.5, 2),
      communicator, resume_from);
}

std::vector<std::byte> in_reading_order(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  std::vector<std::byte> bytes(values.nbytes());
  std::memcpy(bytes.data(), values.const_data_ptr(), bytes.size());
  return bytes;
}

void expect_equal(const StridedModel& model, const StridedModel& expected) {
  const auto wanted = expected.tensors();
  for (const auto& [key, tensor] : model.tensors()) EXPECT_TRUE(at::equal(tensor, wanted.at(key))) << key.second;
}

TEST(Cases, C075ViewsAndStridesAreStoredAsTheyAreRead) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 1}));
  std::optional<MemoryCheckpoint> checkpoint;
  {
    StridedModel model(1);
    Trainer trainer = trainer_of(model, data, *communicator);
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  const StridedModel original(1);
  for (const auto& [key, tensor] : original.tensors()) {
    EXPECT_FALSE(tensor.is_contiguous()) << key.second;
    EXPECT_EQ(checkpoint->bytes(key.first, key.second), in_reading_order(tensor)) << key.second;
  }
  const auto& transposed = checkpoint->bytes("weights", "transposed");
  std::vector<float> numbers(transposed.size() / sizeof(float));
  std::memcpy(numbers.data(), transposed.data(), transposed.size());
  EXPECT_EQ(numbers, (std::vector<float>{0, 3, 1, 4, 2, 5}));

  StridedModel resumed(0);
  Trainer trainer = trainer_of(resumed, data, *communicator, &*checkpoint);
  expect_equal(resumed, original);
  trainer.take_step();
  EXPECT_TRUE(at::equal(resumed.tensors().at({"weights", "transposed"}),
                        original.tensors().at({"weights", "transposed"}) - 0.5));
}

TEST(Cases, C075WeightsAreLoadedIntoViews) {
  const auto communicator = make();
  StridedModel trained(1);
  const RowDataset data(at::ones({4, 1}));
  std::optional<MemoryCheckpoint> checkpoint;
  {
    Trainer trainer = trainer_of(trained, data, *communicator);
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  StridedModel model(0);
  const at::Tensor whole = at::ones({6, 2});
  model.named_parameters()["odd_rows"].set_data(whole.slice(0, 1, 6, 2));
  load_weights(*checkpoint, model, {});
  expect_equal(model, StridedModel(1));
  for (const auto& [key, tensor] : model.tensors()) EXPECT_FALSE(tensor.is_contiguous()) << key.second;
  EXPECT_TRUE(at::equal(whole.slice(0, 0, 6, 2), at::ones({3, 2})));  // what lies between is nobody's
}

TEST(Cases, C075AnExpandedParameterIsStoredWhole) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 1}));
  const at::Tensor values = ExpandedModel(1).weight.detach();
  std::optional<MemoryCheckpoint> checkpoint;
  {
    ExpandedModel model(1);
    Trainer trainer = trainer_of(model, data, *communicator);
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  EXPECT_EQ(checkpoint->bytes("weights", "expanded"), in_reading_order(values));
  ExpandedModel resumed(0);
  Trainer trainer = trainer_of(resumed, data, *communicator, &*checkpoint);
  EXPECT_TRUE(at::equal(resumed.weight, values));
}

}  // namespace
}  // namespace lockstep::test
