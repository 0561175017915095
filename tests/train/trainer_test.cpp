// The trainer's promises around a step: failures on one rank, evaluation, buffers, frozen and mixed types.

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/train/state_snapshot.hpp"
#include "runtime/train/weights_digest.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/error_words.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/pulled_model.hpp"

namespace lockstep::test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// A weight, batch normalisation, and buffers of every kind.
class BufferModel final : public torch::nn::Module {
 public:
  BufferModel()
      : weight(register_parameter("weight", at::ones({1}))),
        norm(register_module("norm", torch::nn::BatchNorm1d(1))),
        seen(register_buffer("seen", at::zeros({2}, at::kInt))),
        mask(register_buffer("mask", at::full({3}, -inf))),
        average(register_buffer("average", at::zeros({1}, at::kDouble))) {}

  Loss loss(const Batch& batch) {
    Loss value = (norm(batch.inputs) * weight).mean() + (weight * batch.inputs).mean();
    const at::NoGradGuard no_grad;
    if (is_training()) {
      seen.add_(1);
      average.copy_(batch.inputs.mean());
    }
    return value;
  }

  at::Tensor weight;
  torch::nn::BatchNorm1d norm;
  at::Tensor seen;
  at::Tensor mask;
  at::Tensor average;
};

std::map<std::string, at::Tensor> copies(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

void expect_equal(const std::map<std::string, at::Tensor>& values,
                  const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, value] : expected) EXPECT_TRUE(at::equal(value, values.at(name))) << name;
}

constexpr double bad_sample = 99.0;

/// Trains two steps of four micro-batches of two; in the second step micro-batch `where` holds the bad sample, for
/// which `fail` is called. The module must be as after the first step, and a training of its own anew.
void expect_failure_on_all_ranks(std::int64_t where, const std::function<void()>& fail, const std::string& words) {
  const auto communicator = make();
  at::Tensor samples = at::arange(16, at::kFloat).view({16, 1});
  samples[8 + 2 * where][0] = bad_sample;
  const RowDataset data(samples);
  BufferModel model;
  const auto loss = [&](const Batch& batch) {
    const Loss value = model.loss(batch);  // buffers have moved when it fails
    if (batch.inputs.eq(bad_sample).any().item<bool>()) fail();
    return value;
  };
  std::map<std::string, at::Tensor> after_first;
  {
    Trainer trainer(model, loss, data, descent(0.1, 8, 2), *communicator);
    trainer.take_step();
    after_first = copies(model);
    const std::string message = error_of([&] { trainer.take_step(); });
    expect_words(message, {words});
    EXPECT_EQ(message.find("frame #"), std::string::npos) << "LibTorch's backtrace is for nobody who trains";
    EXPECT_EQ(trainer.plan().progress().steps_taken, 1);
  }
  expect_equal(copies(model), after_first);
  const auto no_failure = [&](const Batch& batch) { return model.loss(batch); };
  Trainer again(model, no_failure, data, descent(0.1, 8, 2), *communicator);
  EXPECT_TRUE(again.take_step().applied);
}

TEST(Failure, InAMicroBatchOfAnyRankIsThrownOnAllRanks) {
  for (std::int64_t where = 0; where < 4; ++where) {
    expect_failure_on_all_ranks(
        where, [] { throw std::runtime_error("a broken image"); }, "a broken image");
    expect_failure_on_all_ranks(
        where, [] { throw Error(ErrorKind::failed, "the disk is gone"); }, "the disk is gone");
    expect_failure_on_all_ranks(
        where, [] { at::ones({2}) + at::ones({3}); }, "The size of tensor a (2)");
    expect_failure_on_all_ranks(
        where, [] { throw 7; }, "not a std::exception");
  }
}

TEST(Failure, InAnEvaluationOfOneRankIsThrownOnAllRanks) {
  const auto communicator = make();
  at::Tensor samples = at::ones({7, 1});
  samples[6][0] = bad_sample;
  const RowDataset data(samples);
  BufferModel model;
  Trainer trainer(
      model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.1, 4, 2), *communicator);
  const MetricFunction metrics = [](const Batch& batch) -> std::map<std::string, WeightedSum> {
    if (batch.inputs.eq(bad_sample).any().item<bool>()) throw std::runtime_error("no such class");
    return {{"loss", {1.0, 1.0}}};
  };
  expect_words(error_of([&] { trainer.evaluate(data, metrics); }), {"no such class"});
  EXPECT_TRUE(model.norm->is_training());
  trainer.take_step();
}

/// A buffer that is half a constant without a number and half a count of calls.
class HalfConstantModel final : public torch::nn::Module {
 public:
  HalfConstantModel()
      : weight(register_parameter("weight", at::ones({1}))),
        mixed(register_buffer("mixed", at::tensor({-inf, std::nan(""), 0.0}))) {}

  Loss loss(const Batch& batch) {
    const at::NoGradGuard no_grad;
    if (is_training()) mixed[2] += 1;
    const at::AutoGradMode with_gradients(true);
    return (weight * batch.inputs).mean();
  }

  at::Tensor weight;
  at::Tensor mixed;
};

TEST(Buffers, KeepWhatIsNoNumberBesideWhatMoves) {
  const auto communicator = make();
  const RowDataset data(at::ones({8, 1}));
  HalfConstantModel model;
  Trainer trainer(
      model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.1, 4, 2), *communicator);
  for (int step = 1; step <= 2; ++step) {
    EXPECT_TRUE(trainer.take_step().applied);
    EXPECT_EQ(model.mixed[0].item<double>(), -inf);
    EXPECT_TRUE(std::isnan(model.mixed[1].item<double>()));
    EXPECT_EQ(model.mixed[2].item<double>(), step);
  }
}

TEST(Failure, OfAModelThatDiffersOnOneRankIsToldToAllRanks) {
  if (session().num_ranks() == 1) return;
  const auto communicator = make();
  const RowDataset data(at::ones({4, 1}));
  for (const at::ScalarType other_type : {at::kDouble, at::kHalf}) {
    const bool last = session().rank() + 1 == session().num_ranks();
    PulledModel model(at::ones({1}, last ? other_type : at::kFloat));
    const auto loss = [&](const Batch& batch) -> Loss { return model.loss(batch.inputs); };
    const std::string message = error_of([&] { Trainer(model, loss, data, descent(0.1, 2), *communicator); });
    expect_words(message, {other_type == at::kHalf ? "parameter 'weight' has the type Half" : "another model"});
  }
}

TEST(Failure, OfALossThatMixesMeansAndSums) {
  const auto communicator = make();
  const RowDataset data(column({1, 2, 3, 4}, at::kFloat));
  PulledModel model(at::ones({1}));
  const auto loss = [&](const Batch& batch) -> Loss {
    const at::Tensor value = model.loss(batch.inputs);
    return batch.inputs.item<double>() > 2 ? Loss(value, 1.0) : Loss(value);
  };
  Trainer trainer(model, loss, data, descent(0.1, 4), *communicator);
  expect_words(error_of([&] { trainer.take_step(); }), {"weighted sum", "same kind"});
}

TEST(Module, OwnsOrdinaryTensorsWhenTheTrainerIsGone) {
  BufferModel model;
  const float* first = model.weight.const_data_ptr<float>();
  std::map<std::string, at::Tensor> trained;
  {
    const auto communicator = make();
    const RowDataset data(at::ones({4, 1}));
    {
      Trainer trainer(
          model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.1, 4, 2), *communicator);
      trainer.take_step();
      trained = copies(model);
      first = model.weight.const_data_ptr<float>();
    }
    // A write is this rank's alone.
    const at::NoGradGuard no_grad;
    EXPECT_NE(model.weight.const_data_ptr<float>(), first);
    model.weight.fill_(session().rank());
    communicator->barrier();
    EXPECT_EQ(model.weight.item<int>(), session().rank());
    communicator->barrier();
    model.weight.copy_(trained.at("weight"));
  }
  expect_equal(copies(model), trained);
  EXPECT_TRUE(model.weight.requires_grad());
  EXPECT_TRUE(model.weight.is_leaf());
  EXPECT_FALSE(model.weight.grad().defined());
}

/// Counts samples, and those that are 1; "loss" is the sample itself.
std::map<std::string, WeightedSum> count(const Batch& batch) {
  const auto samples = static_cast<double>(batch.size());
  const double sum = batch.inputs.sum().item<double>();
  return {{"accuracy", {batch.inputs.eq(1.0).sum().item<double>(), samples}},
          {"loss", {sum, samples}},
          {"samples_of_a_batch", {samples, 1.0}}};
}

std::map<std::string, double> evaluated(const at::Tensor& samples, std::int64_t batch_size) {
  const auto communicator = make();
  const RowDataset data(samples);
  PulledModel model(at::ones({1}));
  TrainerOptions options = descent(0.1, 1);
  options.evaluation_batch_size = batch_size;
  Trainer trainer(
      model, [&](const Batch& batch) -> Loss { return model.loss(batch.inputs); }, data, options, *communicator);
  return trainer.evaluate(data, count);
}

TEST(Cases, C060EvaluationCountsEverySampleOnceOnAnyRanks) {
  const auto num_counted = [](std::int64_t num_samples, std::int64_t batch_size) {
    const std::int64_t num_batches = (num_samples + batch_size - 1) / batch_size;
    const double of_a_batch = evaluated(at::zeros({num_samples, 1}), batch_size).at("samples_of_a_batch");
    return std::llround(of_a_batch * static_cast<double>(num_batches));
  };
  EXPECT_EQ(num_counted(21, 1), 21);
  EXPECT_EQ(num_counted(21, 4), 21);
  EXPECT_EQ(num_counted(25000, 320), 25000);
  for (const std::int64_t batch_size : {1, 2, 3, 5, 8})
    EXPECT_EQ(evaluated(column({1, 0, 0, 0, 0}, at::kFloat), batch_size).at("accuracy"), 0.2) << batch_size;
}

TEST(Cases, C061MeanOverBatchesOfDifferentSize) {
  EXPECT_EQ(evaluated(column({1, 1, 1, 1, 1, 1, 1, 1, 4, 4}), 4).at("loss"), 1.6);
}

TEST(Cases, C062TheMetricOfAWeightedLossIsItsMeanOverTheWeights) {
  const auto communicator = make();
  const RowDataset data(at::tensor({20.0, 10.0, 30.0, 30.0}, at::kDouble).view({2, 2}));
  PulledModel model(at::ones({1}, at::kDouble));
  const auto loss = [&](const Batch& batch) -> Loss {
    const at::Tensor sums = batch.inputs.sum(0);
    return {model.weight[0] * sums[0], sums[1].item<double>()};
  };
  Trainer trainer(model, loss, data, descent(0.1, 2), *communicator);
  EXPECT_EQ(trainer.evaluate(data, {}).at("loss"), 1.25);
}

TEST(Evaluation, LeavesTheModelAndTheRandomNumbersAsTheyWere) {
  const auto communicator = make();
  const RowDataset data(at::arange(6, at::kFloat).view({6, 1}));
  BufferModel model;
  model.norm->eval();  // a part that the user keeps in evaluation mode
  Trainer trainer(
      model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.1, 3, 2), *communicator);
  const auto before = copies(model);
  torch::manual_seed(3);
  const double expected = at::rand({1}).item<double>();
  torch::manual_seed(3);
  trainer.evaluate(data, [&](const Batch& batch) -> std::map<std::string, WeightedSum> {
    EXPECT_FALSE(model.is_training());
    at::rand({5});
    return {{"loss", {model.loss(batch).value.item<double>(), 1.0}}};
  });
  EXPECT_EQ(at::rand({1}).item<double>(), expected);
  expect_equal(copies(model), before);
  EXPECT_TRUE(model.is_training());
  EXPECT_FALSE(model.norm->is_training());
}

TEST(Evaluation, OfNoSamplesIsRefused) {
  const auto communicator = make();
  PulledRun run(at::ones({2, 1}), at::ones({1}), descent(0.1, 2), *communicator);
  expect_words(error_of([&] { run.trainer().evaluate(RowDataset(at::zeros({0, 1})), count); }), {"no sample"});
}

TEST(Buffers, CountersCountStepsFloatingOnesAreAveragedConstantsStay) {
  const auto communicator = make();
  const RowDataset data(column({1, 2, 3, 10, 20, 30, 40}, at::kFloat));
  BufferModel model;
  Trainer trainer(
      model, [&](const Batch& batch) { return model.loss(batch); }, data, descent(0.01, 5, 3), *communicator);
  EXPECT_TRUE(trainer.take_step().applied);  // micro-batches {1, 2, 3} and {10, 20}
  EXPECT_TRUE(at::equal(model.seen, at::full({2}, 1, at::kInt)));
  EXPECT_EQ(model.norm->num_batches_tracked.item<std::int64_t>(), 1);
  EXPECT_TRUE(at::equal(model.mask, at::full({3}, -inf)));
  EXPECT_NEAR(model.average.item<double>(), 7.2, 1e-12);  // (3 x 2 + 2 x 15) / 5
  EXPECT_TRUE(trainer.take_step().applied);
  EXPECT_TRUE(at::equal(model.seen, at::full({2}, 2, at::kInt)));
  EXPECT_NEAR(model.average.item<double>(), 35.0, 1e-12);
  const MemoryCheckpoint stored(trainer.snapshot(), *communicator);
  EXPECT_EQ(stored.bytes("buffers", "norm.num_batches_tracked").at(0), std::byte{2});
}

/// Writes to a buffer in a way of the test's choice.
class WritingModel final : public torch::nn::Module {
 public:
  explicit WritingModel(const at::Tensor& initial)
      : weight(register_parameter("weight", at::ones({1}))), state(register_buffer("state", initial.clone())) {}

  at::Tensor weight;
  at::Tensor state;
};

TEST(Buffers, AChangeWithoutARuleIsRefusedByName) {
  const auto communicator = make();
  const RowDataset data(at::ones({4, 1}));
  const auto message = [&](const at::Tensor& initial, const std::function<void(at::Tensor&)>& write) {
    WritingModel model(initial);
    const auto loss = [&](const Batch& batch) -> Loss {
      write(model.state);
      return (model.weight * batch.inputs).mean();
    };
    const std::string text = error_of([&] {
      Trainer trainer(model, loss, data, descent(0.1, 4), *communicator);
      trainer.take_step();
    });
    EXPECT_TRUE(at::equal(model.state, initial));
    return text;
  };
  expect_words(message(at::zeros({2}, at::kLong), [](at::Tensor& state) { state.add_(2); }), {"buffer 'state'"});
  expect_words(message(at::zeros({2}, at::kLong), [](at::Tensor& state) { state[0].add_(1); }), {"buffer 'state'"});
  expect_words(message(at::zeros({2}, at::kBool), [](at::Tensor& state) { state.fill_(true); }), {"buffer 'state'"});
  expect_words(message(at::zeros({2}, at::kHalf), [](at::Tensor& state) { state.add_(1); }), {"buffer 'state'"});
  // Written, but not changed.
  EXPECT_EQ(message(at::ones({2}, at::kBool), [](at::Tensor& state) { state.fill_(true); }), "");
  EXPECT_EQ(message(at::ones({2}, at::kHalf), [](at::Tensor& state) { state.fill_(1); }), "");
}

/// Trainable float32 and float64 parameters beside frozen ones of 16 bits with every bit pattern.
class MixedModel final : public torch::nn::Module {
 public:
  explicit MixedModel(bool with_patterns)
      : single(register_parameter("single", at::ones({2}))),
        twice(register_parameter("twice", at::ones({2}, at::kDouble))),
        half(register_parameter("half", frozen(with_patterns, at::kHalf), false)),
        brain(register_parameter("brain", frozen(with_patterns, at::kBFloat16), false)),
        fixed(register_parameter("fixed", at::full({3}, with_patterns ? 0.1 : 0.0), false)) {}

  static at::Tensor frozen(bool with_patterns, at::ScalarType type) {
    return with_patterns ? at::arange(-32768, 32768, at::kShort).view(type) : at::zeros({65536}, type);
  }

  at::Tensor single;
  at::Tensor twice;
  at::Tensor half;
  at::Tensor brain;
  at::Tensor fixed;
};

TEST(Types, MixedModelsTrainAndFrozenOnesKeepTheirBits) {
  const auto communicator = make();
  const RowDataset data(at::tensor({3.0, 0.0, 4.0, 0.0}, at::kDouble).view({1, 4}));
  const auto loss_of = [](MixedModel& model) {
    return [&model](const Batch& batch) -> Loss {
      return (batch.inputs.narrow(1, 0, 2) * model.single).sum() + (batch.inputs.narrow(1, 2, 2) * model.twice).sum();
    };
  };
  const auto bits = [](const at::Tensor& tensor) { return tensor.detach().view(at::kShort).clone(); };
  TrainerOptions options = descent(0.1, 1);
  options.plan.num_train_epochs = "2";
  options.max_grad_norm = 1.0;
  std::optional<MemoryCheckpoint> checkpoint;
  {
    MixedModel model(true);
    Trainer trainer(model, loss_of(model), data, options, *communicator);
    EXPECT_EQ(trainer.take_step().gradient_norm, 5.0);  // over both types
    EXPECT_NEAR(model.single[0].item<double>(), 1.0 - 0.06, 1e-6);
    EXPECT_NEAR(model.twice[0].item<double>(), 1.0 - 0.08, 1e-6);
    EXPECT_EQ(model.twice[1].item<double>(), 1.0);
    checkpoint.emplace(trainer.snapshot(), *communicator);
  }
  const auto expect_frozen_bits = [&](const MixedModel& model) {
    EXPECT_TRUE(at::equal(bits(model.half), at::arange(-32768, 32768, at::kShort)));
    EXPECT_TRUE(at::equal(bits(model.brain), at::arange(-32768, 32768, at::kShort)));
    EXPECT_TRUE(at::equal(model.fixed, at::full({3}, 0.1)));
  };
  MixedModel model(false);
  Trainer trainer(model, loss_of(model), data, options, *communicator, &*checkpoint);
  expect_frozen_bits(model);
  trainer.take_step();
  expect_frozen_bits(model);
  EXPECT_NEAR(model.twice[0].item<double>(), 1.0 - 0.16, 1e-6);

  MixedModel finetuned(false);
  load_weights(*checkpoint, finetuned, {});
  expect_frozen_bits(finetuned);
  EXPECT_NEAR(finetuned.twice[0].item<double>(), 1.0 - 0.08, 1e-6);
}

TEST(Types, SixteenBitParametersAreNotTrained) {
  const auto communicator = make();
  const RowDataset data(at::ones({2, 1}));
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    PulledModel model(at::ones({1}, type));
    const auto loss = [&](const Batch& batch) -> Loss { return model.loss(batch.inputs); };
    expect_words(error_of([&] { Trainer(model, loss, data, descent(0.1, 2), *communicator); }),
                 {"parameter 'weight'", c10::toString(type), "--precision", "freeze"});
  }
}

}  // namespace
}  // namespace lockstep::test
