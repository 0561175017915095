// The optimizer against LibTorch's own, and what a checkpoint keeps of the training state.

#include <ATen/ops/allclose.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/train/state_snapshot.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/error_words.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

const std::vector<double> adam_pulls{1.0, 0.5, -0.25, 2.0, 0.1, 0.1, 0.1, 0.1};

TrainerOptions adam_options(OptimizerKind kind) {
  TrainerOptions options = descent(0.1, 1);
  options.optimizer = {};
  options.optimizer.kind = kind;
  return options;
}

template <class T>
std::vector<T> values_of(const MemoryCheckpoint& checkpoint, const std::string& section, const std::string& name) {
  const std::vector<std::byte>& bytes = checkpoint.bytes(section, name);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void expect_adam_course(OptimizerKind kind, const std::vector<double>& expected) {
  const auto communicator = make();
  const at::Tensor pulls = column(adam_pulls);
  const at::Tensor one = at::ones({1}, at::kDouble);
  std::optional<MemoryCheckpoint> checkpoint;
  std::size_t step = 0;
  const auto advance = [&](PulledRun& run, std::size_t until) {
    for (; step < until; ++step) {
      run.trainer().take_step();
      EXPECT_NEAR(run.weight().item<double>(), expected[step], 1e-10) << step;
    }
  };
  {
    PulledRun run(pulls, one, adam_options(kind), *communicator);
    advance(run, 5);
    checkpoint.emplace(run.trainer().snapshot(), *communicator);
  }
  PulledRun run(pulls, one, adam_options(kind), *communicator, &*checkpoint);
  advance(run, 8);
  const MemoryCheckpoint last(run.trainer().snapshot(), *communicator);
  EXPECT_EQ(attribute<std::int64_t>(last.attributes(), "optimizer", "updates"), 8);
  EXPECT_NEAR(values_of<double>(last, "optimizer/exp_avg", "weight").at(0), 0.22524949, 1e-12);
  EXPECT_NEAR(values_of<double>(last, "optimizer/exp_avg_sq", "weight").at(0), 0.0053276768584080425, 1e-14);
}

TEST(Cases, C048AdamTrajectoryOverARestart) {
  expect_adam_course(OptimizerKind::adam,
                     {0.900000001, 0.8067820382981611, 0.7504159014963296, 0.6770470281393891, 0.6127255681436701,
                      0.5550769077172604, 0.5025846008349378, 0.4542051082864235});
}

TEST(Cases, C048AdamWTrajectoryOverARestart) {
  expect_adam_course(OptimizerKind::adamw,
                     {0.899000001, 0.8048830382971611, 0.7477120184570325, 0.6735954330816349, 0.6086003776528343,
                      0.5503431168487717, 0.49730046684960044, 0.44842367383423654});
}

/// Twenty steps of ours and of LibTorch's optimizer over the same gradients.
void expect_course_of(
    const OptimizerOptions& ours, double rate,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& theirs) {
  const auto communicator = make();
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    torch::manual_seed(5);
    const at::Tensor pulls = at::randn({20, 3000}, type);  // three blocks, so that ranks have parts of it
    const at::Tensor initial = at::randn({3000}, type);
    TrainerOptions options = descent(rate, 1);
    options.optimizer = ours;
    PulledRun run(pulls, initial, options, *communicator);
    run.advance();
    at::Tensor weight = initial.clone().requires_grad_();
    const auto optimizer = theirs({weight});
    for (std::int64_t step = 0; step < 20; ++step) {
      weight.mutable_grad() = pulls[step].clone();
      optimizer->step();
    }
    EXPECT_TRUE(at::allclose(run.weight(), weight, type == at::kDouble ? 1e-12 : 2e-5, 1e-7))
        << name_of(ours.kind) << ' ' << type << ' ' << (run.weight() - weight).abs().max().item<double>();
  }
}

TEST(Optimizer, IsLibTorchsAdamW) {
  OptimizerOptions options;
  options.beta1 = 0.8;
  options.beta2 = 0.95;
  options.eps = 1e-6;
  expect_course_of(options, 1e-2, [](auto weights) {
    return std::make_unique<torch::optim::AdamW>(
        weights, torch::optim::AdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.01));
  });
}

TEST(Optimizer, IsLibTorchsAdam) {
  OptimizerOptions options;
  options.kind = OptimizerKind::adam;
  options.weight_decay = 0.1;
  expect_course_of(options, 1e-2, [](auto weights) {
    return std::make_unique<torch::optim::Adam>(weights, torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  });
}

TEST(Optimizer, IsLibTorchsDescentWithMomentum) {
  OptimizerOptions options;
  options.kind = OptimizerKind::sgd;
  options.weight_decay = 0.01;
  for (const bool nesterov : {false, true}) {
    options.nesterov = nesterov;
    expect_course_of(options, 1e-2, [&](auto weights) {
      return std::make_unique<torch::optim::SGD>(
          weights, torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.01).nesterov(nesterov));
    });
  }
}

/// Some parameters of two numbers, in a given order; each sample pulls all of them by its row.
class NamedModel final : public torch::nn::Module {
 public:
  explicit NamedModel(const std::vector<std::string>& names) {
    for (const std::string& name : names) register_parameter(name, at::ones({2}));
  }

  at::Tensor operator[](const std::string& name) const { return named_parameters()[name]; }

  LossFunction loss() const {
    return [this](const Batch& batch) -> Loss {
      at::Tensor sum = at::zeros({});
      for (const at::Tensor& parameter : parameters())
        if (parameter.requires_grad()) sum = sum + (batch.inputs * parameter).sum(1).mean();
      return sum;
    };
  }
};

std::vector<std::byte> moment(const MemoryCheckpoint& checkpoint, const std::string& name) {
  return checkpoint.bytes("optimizer/exp_avg", name);
}

bool has_moment(const MemoryCheckpoint& checkpoint, const std::string& name) {
  for (const TensorInfo& info : checkpoint.tensors())
    if (info.section == "optimizer/exp_avg" && info.name == name) return true;
  return false;
}

TEST(Optimizer, RefusesABetaOfOne) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 2}));
  for (double OptimizerOptions::*beta : {&OptimizerOptions::beta1, &OptimizerOptions::beta2}) {
    TrainerOptions options = adam_options(OptimizerKind::adam);
    options.optimizer.*beta = 1.0;
    NamedModel model({"a"});
    expect_words(error_of([&] { Trainer(model, model.loss(), data, options, *communicator); }),
                 {"adam is 1", "below 1"});
  }
}

TEST(Cases, C052StateIsMatchedByNameAndGroupsStayWithTheirParameters) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 2}));
  TrainerOptions options = adam_options(OptimizerKind::adamw);
  options.parameter_groups.push_back({[](const std::string& name) { return name == "c"; }, 0.5, 1.0});
  options.parameter_groups.push_back({[](const std::string& name) { return name == "a"; }, std::nullopt, 0.5});
  std::optional<MemoryCheckpoint> checkpoint;
  double a = 0.0;
  double c = 0.0;
  {
    NamedModel model({"a", "b", "c"});
    model["b"].set_requires_grad(false);
    Trainer trainer(model, model.loss(), data, options, *communicator);
    trainer.take_step();
    a = model["a"][0].item<double>();
    c = model["c"][0].item<double>();
    EXPECT_NEAR(a, 1.0 - 0.05 * 0.01 - 0.05, 1e-6);  // half the rate, the default decay
    EXPECT_NEAR(c, 1.0 - 0.1 * 0.5 - 0.1, 1e-6);     // decays by a half
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  EXPECT_FALSE(has_moment(*checkpoint, "b"));

  NamedModel model({"b", "c", "a"});
  model["b"].set_requires_grad(false);
  Trainer trainer(model, model.loss(), data, options, *communicator, &*checkpoint);
  const MemoryCheckpoint again(trainer.snapshot(), *communicator);
  EXPECT_EQ(moment(again, "a"), moment(*checkpoint, "a"));
  EXPECT_EQ(moment(again, "c"), moment(*checkpoint, "c"));
  EXPECT_FALSE(has_moment(again, "b"));
  EXPECT_EQ(model["a"][0].item<double>(), a);
  EXPECT_EQ(model["c"][0].item<double>(), c);
  trainer.take_step();  // a constant gradient moves Adam by the rate
  EXPECT_NEAR(model["a"][0].item<double>(), a * (1.0 - 0.05 * 0.01) - 0.05, 1e-6);
  EXPECT_NEAR(model["c"][0].item<double>(), c * (1.0 - 0.1 * 0.5) - 0.1, 1e-6);
}

TEST(Cases, C053ParameterFrozenAfterTheCheckpoint) {
  const auto communicator = make();
  const RowDataset data(at::ones({20, 2}));
  const TrainerOptions options = adam_options(OptimizerKind::adam);
  NamedModel model({"a", "c", "never"});
  model["never"].set_requires_grad(false);
  std::optional<MemoryCheckpoint> trained;
  {
    Trainer trainer(model, model.loss(), data, options, *communicator);
    for (int step = 0; step < 5; ++step) trainer.take_step();
    trained.emplace(trainer.snapshot(), *communicator);
  }
  model["c"].set_requires_grad(false);
  const at::Tensor frozen = model["c"].clone();
  std::optional<MemoryCheckpoint> while_frozen;
  {
    Trainer trainer(model, model.loss(), data, options, *communicator, &*trained);
    for (int step = 0; step < 3; ++step) trainer.take_step();
    EXPECT_TRUE(at::equal(model["c"], frozen));
    while_frozen.emplace(trainer.snapshot(), *communicator);
  }
  EXPECT_EQ(moment(*while_frozen, "c"), moment(*trained, "c"));
  EXPECT_FALSE(has_moment(*while_frozen, "never"));

  model["c"].set_requires_grad(true);
  Trainer trainer(model, model.loss(), data, options, *communicator, &*while_frozen);
  const MemoryCheckpoint again(trainer.snapshot(), *communicator);
  EXPECT_EQ(moment(again, "c"), moment(*trained, "c"));
  using Names = std::vector<std::string>;
  EXPECT_EQ(attribute<std::int64_t>(again.attributes(), "optimizer", "updates"), 8);
  EXPECT_EQ(attribute<Names>(again.attributes(), "optimizer", "parameters_with_other_updates"), Names{"c"});
  EXPECT_EQ(attribute<std::vector<std::int64_t>>(again.attributes(), "optimizer", "their_updates"),
            std::vector<std::int64_t>{5});
  // Its sixth update corrects the bias of six: with a constant gradient Adam moves by the rate.
  trainer.take_step();
  EXPECT_NEAR(model["c"][0].item<double>(), frozen[0].item<double>() - 0.1, 1e-6);
}

/// An embedding tied to the head, under both names.
class TiedModel final : public torch::nn::Module {
 public:
  explicit TiedModel(bool tied) {
    at::Tensor weight = register_parameter("embedding", at::ones({10, 4}));
    register_parameter("head", tied ? weight : at::ones({10, 4}));
  }

  at::Tensor operator[](const std::string& name) const { return named_parameters()[name]; }

  /// Each of the two gets a half of a gradient that is one everywhere.
  LossFunction loss() const {
    return [this](const Batch&) -> Loss { return ((*this)["embedding"].sum() + (*this)["head"].sum()) / 2; };
  }
};

TEST(Cases, C054TiedWeights) {
  const auto communicator = make();
  const RowDataset data(at::ones({2, 1}));
  std::optional<MemoryCheckpoint> checkpoint;
  {
    TiedModel model(true);
    Trainer trainer(model, model.loss(), data, descent(0.25, 1), *communicator);
    EXPECT_NEAR(trainer.take_step().gradient_norm, 6.32455532, 1e-7);
    EXPECT_EQ(model["embedding"][0][0].item<double>(), 0.75);
    const Snapshot snapshot = trainer.snapshot();
    EXPECT_EQ(snapshot.aliases.size(), 1U);
    if (!snapshot.aliases.empty()) {
      EXPECT_EQ(snapshot.aliases[0].alias, "head");
      EXPECT_EQ(snapshot.aliases[0].name, "embedding");
    }
    EXPECT_EQ(snapshot.tensors.size(), 1U);
    checkpoint.emplace(snapshot, *communicator);
  }
  TiedModel model(true);
  {
    Trainer trainer(model, model.loss(), data, descent(0.25, 1), *communicator, &*checkpoint);
    trainer.take_step();
    EXPECT_EQ(model["embedding"].data_ptr(), model["head"].data_ptr());
  }
  EXPECT_EQ(model["embedding"].data_ptr(), model["head"].data_ptr());
  EXPECT_EQ(model["head"][0][0].item<double>(), 0.5);

  TiedModel untied(false);  // equal, but two
  Trainer trainer(untied, untied.loss(), data, descent(0.25, 1), *communicator);
  EXPECT_NEAR(trainer.take_step().gradient_norm, std::sqrt(80.0) / 2, 1e-7);
  EXPECT_NE(untied["embedding"].data_ptr(), untied["head"].data_ptr());
  EXPECT_EQ(trainer.snapshot().tensors.size(), 2U);
}

TEST(Cases, C050MomentsStayInFloat32) {
  // m = 1e-4 and v = 1e-9 lie below what 16 bits hold: betas of zero make them g and g x g.
  const auto communicator = make();
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    TrainerOptions options = adam_options(OptimizerKind::adam);
    options.precision = precision;
    options.loss_scaler.init_scale = 1.0;
    options.optimizer.beta1 = 0.0;
    options.optimizer.beta2 = 0.0;
    const at::Tensor pulls = at::full({2, 1}, 3.1622777e-5, at::kFloat);
    std::optional<MemoryCheckpoint> checkpoint;
    {
      PulledRun run(pulls, at::zeros({1}), options, *communicator);
      run.trainer().take_step();
      checkpoint.emplace(run.trainer().snapshot(), *communicator);
    }
    EXPECT_NEAR(values_of<float>(*checkpoint, "optimizer/exp_avg_sq", "weight").at(0) / 1e-9, 1.0, 1e-6);
    PulledRun run(pulls, at::zeros({1}), options, *communicator, &*checkpoint);
    const MemoryCheckpoint again(run.trainer().snapshot(), *communicator);
    for (const char* section : {"optimizer/exp_avg", "optimizer/exp_avg_sq", "weights"}) {
      EXPECT_EQ(values_of<float>(again, section, "weight").size(), 1U);
      EXPECT_EQ(again.bytes(section, "weight"), checkpoint->bytes(section, "weight")) << section;
    }
  }
}

TEST(Restore, ListsNamesAndShapesOfAnotherModelAndChangesNothing) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 2}));
  const TrainerOptions options = adam_options(OptimizerKind::adamw);
  std::optional<MemoryCheckpoint> checkpoint;
  {
    NamedModel model({"a", "b"});
    Trainer trainer(model, model.loss(), data, options, *communicator);
    trainer.take_step();
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  NamedModel other({"a", "z"});
  expect_words(error_of([&] { Trainer(other, other.loss(), data, options, *communicator, &*checkpoint); }),
               {"weights 'z' float32[2]", "weights 'b' float32[2]", "optimizer/exp_avg 'b'", "--finetune-from"});
  EXPECT_EQ(numbers(other["a"]), (std::vector<double>{1, 1}));

  PulledModel wider(at::ones({3}));
  MemoryCheckpoint narrow = [&] {
    PulledRun run(at::ones({2, 2}), at::ones({2}), options, *communicator);
    return MemoryCheckpoint(run.trainer().snapshot(), *communicator);
  }();
  const auto loss = [&](const Batch& batch) -> Loss { return wider.loss(batch.inputs); };
  const RowDataset wide(at::ones({2, 3}));
  expect_words(error_of([&] { Trainer(wider, loss, wide, options, *communicator, &narrow); }),
               {"weights 'weight': float32[2] stored, float32[3] here"});

  TrainerOptions descending = options;
  descending.optimizer.kind = OptimizerKind::sgd;
  NamedModel same({"a", "b"});
  expect_words(error_of([&] { Trainer(same, same.loss(), data, descending, *communicator, &*checkpoint); }),
               {"adamw", "sgd", "--finetune-from"});
}

TEST(LoadWeights, TakesWhatFitsAndNamesWhatDoesNot) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 2}));
  std::optional<MemoryCheckpoint> checkpoint;
  double trained = 0.0;
  {
    NamedModel model({"a", "b"});
    Trainer trainer(model, model.loss(), data, adam_options(OptimizerKind::adamw), *communicator);
    trainer.take_step();
    trained = model["a"][0].item<double>();
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  NamedModel model({"a", "head"});
  expect_words(error_of([&] { load_weights(*checkpoint, model, {}); }), {"'head'", "'b'", "--allow-missing"});
  EXPECT_EQ(error_of([&] { load_weights(*checkpoint, model, {}); }).find("--finetune-from"), std::string::npos);
  EXPECT_NE(error_of([&] { load_weights(*checkpoint, model, {.allow_missing = true}); }), "");
  EXPECT_NE(error_of([&] { load_weights(*checkpoint, model, {.allow_unexpected = true}); }), "");
  EXPECT_EQ(model["a"][0].item<double>(), 1.0);
  const auto passed_over = load_weights(*checkpoint, model, {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(passed_over.size(), 2U);
  EXPECT_EQ(model["a"][0].item<double>(), trained);
  EXPECT_EQ(model["head"][0].item<double>(), 1.0);
  EXPECT_TRUE(model["a"].requires_grad());
}

}  // namespace
}  // namespace lockstep::test
