// The time of a training step, on synthetic data: our side of the comparison that side_by_side.py makes. Models,
// initial weights and data follow the formulas of workloads.py, so that both sides compute the same.
//
// Prints one line of JSON on rank 0: seconds_per_step, cpu_seconds_per_step (of this rank), first_loss (of the first
// global batch, in evaluation mode, before any step), and messages (why there is no CUDA graph).

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "drivers/command_line.hpp"
#include "drivers/train_models.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/train/host_memory.hpp"
#include "runtime/train/numerics.hpp"
#include "runtime/train/trainer.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t image_side = 28;
constexpr std::int64_t num_features = image_side * image_side;
constexpr std::int64_t num_classes = 10;

struct Options {
  std::string model;
  std::int64_t samples_per_rank = 64;
  std::int64_t num_samples = 4096;
  std::int64_t steps = 200;
  std::int64_t warmup_steps = 20;
  std::string weights;
  std::string device = "cpu";
  DeviceSettings device_settings;
  bool cuda_graph = false;
};

/// Inputs uniform in [0, 1) and classes, each a hash of its index.
class SyntheticDataset final : public Dataset {
 public:
  explicit SyntheticDataset(std::int64_t num_samples)
      : inputs_(at::empty({num_samples, 1, image_side, image_side}, at::kFloat)),
        targets_(at::empty({num_samples}, at::kLong)) {
    float* const inputs = inputs_.data_ptr<float>();
    for (std::int64_t i = 0; i < num_samples * num_features; ++i)
      inputs[i] = static_cast<float>(scramble(static_cast<std::uint32_t>(i)) >> 8) * 0x1p-24F;
    std::int64_t* const targets = targets_.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < num_samples; ++i)
      targets[i] = scramble(static_cast<std::uint32_t>(i) + 0x5BD1E995U) % num_classes;
  }

  std::int64_t num_samples() const override { return targets_.size(0); }

  Batch get(std::span<const std::int64_t> ids) const override {
    const auto num_rows = static_cast<std::int64_t>(ids.size());
    Batch batch{at::empty({num_rows, 1, image_side, image_side}, at::kFloat), at::empty({num_rows}, at::kLong)};
    float* inputs = batch.inputs.data_ptr<float>();
    std::int64_t* targets = batch.targets.data_ptr<std::int64_t>();
    for (const std::int64_t id : ids) {
      inputs = std::copy_n(inputs_.const_data_ptr<float>() + id * num_features, num_features, inputs);
      *targets++ = targets_.const_data_ptr<std::int64_t>()[id];
    }
    return batch;
  }

 private:
  static std::uint32_t scramble(std::uint32_t x) {
    x *= 2654435761U;
    x ^= x >> 16;
    x *= 0x45D9F3BU;
    return x ^ (x >> 15);
  }

  at::Tensor inputs_;
  at::Tensor targets_;
};

/// "cnn", or "mlp:784-256-256-10": the widths from the inputs to the outputs.
ModelOptions model_options(const std::string& name) {
  ModelOptions options;
  options.kind = name.substr(0, name.find(':'));
  options.input_shape = {1, image_side, image_side};
  options.num_outputs = num_classes;
  if (options.kind == "cnn") {
    options.dropout = 0.25;
    return options;
  }
  options.hidden_sizes.clear();
  std::istringstream widths(name.substr(name.find(':') + 1));
  for (std::string width; std::getline(widths, width, '-');)
    options.hidden_sizes.push_back(parse_count("--model", width, kPositive));
  if (options.kind != "mlp" || options.hidden_sizes.size() < 2 || options.hidden_sizes.front() != num_features ||
      options.hidden_sizes.back() != num_classes)
    throw Error(ErrorKind::usage,
                text("no model ", name, ": cnn, or mlp:", num_features, "-<width>-...-", num_classes));
  options.hidden_sizes.erase(options.hidden_sizes.begin());
  options.hidden_sizes.pop_back();
  return options;
}

void import_weights(torch::nn::Module& model, const std::string& path) {
  const at::NoGradGuard no_grad;
  std::ifstream file(path, std::ios::binary);
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
    file.read(static_cast<char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    parameter.copy_(values);
  }
  if (!file || file.peek() != std::ifstream::traits_type::eof())
    throw Error(ErrorKind::usage, text(path,
                                       " does not hold as many float32 values as the model has weights: write it "
                                       "with ddp.py --export-weights"));
}

nlohmann::json measure(const Options& options, Communicator& communicator) {
  const std::int64_t global_batch = options.samples_per_rank * communicator.num_ranks();
  const std::shared_ptr<Model> model = make_model(model_options(options.model), 1);
  if (!options.weights.empty()) import_weights(*model, options.weights);
  const SyntheticDataset data(options.num_samples / global_batch * global_batch);
  const SyntheticDataset first_batch(global_batch);

  TrainerOptions trainer_options;
  trainer_options.plan.global_batch_size = global_batch;
  trainer_options.plan.micro_batch_size = options.samples_per_rank;
  trainer_options.plan.max_steps = options.warmup_steps + options.steps;
  trainer_options.plan.schedule.kind = ScheduleKind::constant;
  if (options.cuda_graph) trainer_options.make_graph = [&] { return communicator.make_graph(); };
  Trainer trainer(*model, make_loss("cross-entropy", *model), data, trainer_options, communicator);

  const double first_loss = trainer.evaluate(first_batch, make_metrics("cross-entropy", *model)).at("loss");
  RunControl control;
  std::vector<std::string> messages;
  control.events.on_message = [&](const std::string& message) { messages.push_back(message); };
  control.stop_after_steps = options.warmup_steps;
  trainer.run(control, nullptr);
  communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  control.stop_after_steps = options.steps;
  trainer.run(control, nullptr);
  const auto cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  communicator.barrier();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const auto steps = static_cast<double>(options.steps);
  return {{"seconds_per_step", elapsed.count() / steps},
          {"cpu_seconds_per_step", cpu_seconds / steps},
          {"first_loss", first_loss},
          {"messages", messages}};
}

int run(int argc, char** argv) {
  keep_freed_memory();
  flush_subnormals();
  Options options;
  CLI::App app("Times training steps on synthetic data.", "step_bench");
  prepare_command_line(app);
  app.add_option("--model", options.model, "cnn, or mlp:<width>-<width>-...")->required();
  add_count(app, "--samples-per-rank", options.samples_per_rank, kPositive, "Samples of a rank in a step");
  add_count(app, "--num-samples", options.num_samples, kPositive, "Samples of the data set");
  add_count(app, "--steps", options.steps, kPositive, "Timed steps");
  add_count(app, "--warmup-steps", options.warmup_steps, kNotNegative, "Steps before them");
  app.add_option("--weights", options.weights,
                 "File of the initial weights, from ddp.py --export-weights; drawn here when absent");
  app.add_option("--device", options.device, "cpu, or cuda: one device a rank. Default: cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("NAME");
  add_choice(app, "--reduction", options.device_settings.reduction, &reduction_order_from,
             {ReductionOrder::exact, ReductionOrder::fast}, "Order of the sums on devices. Default: fast");
  app.add_flag("--cuda-graph", options.cuda_graph, "Micro-batches as CUDA graphs");
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) return *code;

  at::set_num_threads(1);
  const MpiSession session;
  const std::unique_ptr<Communicator> communicator = make_communicator(
      session, CommunicatorKind::automatic, options.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu,
      options.device_settings, [](const std::string& line) { std::cerr << line << "\n"; });
  const nlohmann::json report = measure(options, *communicator);
  if (communicator->rank() == 0) std::cout << report.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run_program("step_bench", argc, argv, lockstep::run); }
