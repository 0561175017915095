#include "drivers/train_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "drivers/command_line.hpp"
#include "drivers/plan_flags.hpp"
#include "io/save_fault.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {

// The trainer's choices by name, for add_choice().
std::string name_of(OverflowPolicy policy) { return policy == OverflowPolicy::retry ? "retry" : "skip"; }
std::string name_of(NonfinitePolicy policy) { return policy == NonfinitePolicy::error ? "error" : "skip"; }
static std::string name_of(DeviceKind kind) {
  return kind == DeviceKind::automatic ? "auto" : kind == DeviceKind::cpu ? "cpu" : "cuda";
}

namespace {

constexpr Range<double> not_negative{0.0, std::numeric_limits<double>::max()};
constexpr Range<double> up_to_one{0.0, 1.0};
constexpr Range<double> below_one{0.0, 1.0, RangeEnd::outside};
constexpr int bits_of_mebibyte = 20;
constexpr Range<std::int64_t> whole_mebibytes{1, std::numeric_limits<std::int64_t>::max() >> bits_of_mebibyte};

std::string normalized(std::string_view value) {
  std::string result;
  for (const char c : value)
    result += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

template <class Choice>
Choice choice_from(std::string_view value, std::initializer_list<Choice> choices) {
  std::string names;
  for (const Choice choice : choices) {
    if (name_of(choice) == normalized(value)) return choice;
    names += text(names.empty() ? "" : ", ", name_of(choice));
  }
  throw Error(ErrorKind::usage, text("'", value, "' is not known: take one of ", names));
}

OverflowPolicy overflow_policy_from(std::string_view value) {
  return choice_from(value, {OverflowPolicy::retry, OverflowPolicy::skip});
}
NonfinitePolicy nonfinite_policy_from(std::string_view value) {
  return choice_from(value, {NonfinitePolicy::error, NonfinitePolicy::skip});
}

DeviceKind device_kind_from(std::string_view value) {
  return choice_from(value, {DeviceKind::automatic, DeviceKind::cpu, DeviceKind::cuda});
}

/// An option that takes one of some words, in any case and with hyphens or underscores.
CLI::Option* add_word(CLI::App& app, const std::string& name, std::string& target, std::vector<std::string> words,
                      const std::string& help) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return app
      .add_option_function<std::string>(
          name,
          [&target, name, words = std::move(words), joined](const std::string& value) {
            target = normalized(value);
            if (std::find(words.begin(), words.end(), target) == words.end())
              throw CLI::ValidationError(name, text("'", value, "' is not known: take one of ", joined));
          },
          text(help, ". One of: ", joined))
      ->type_name("NAME");
}

void add_data_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Data";
  app.add_option("--train-data", command.train_data, "HDF5 file to train on")
      ->required()
      ->type_name("FILE")
      ->group(group);
  app.add_option("--validation-data", command.validation_data, "HDF5 file that is evaluated after every epoch")
      ->type_name("FILE")
      ->group(group);
  app.add_option(
         "--inputs-name", command.inputs_name,
         "Dataset of the inputs; its first dimension counts samples. uint8 is divided by 255. Default: images")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--targets-name", command.targets_name, "Dataset of the targets. Default: labels")
      ->type_name("NAME")
      ->group(group);
}

void add_model_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Model and loss";
  add_word(app, "--model", command.model.kind, {"mlp", "cnn"}, "Built-in model. Default: mlp")->group(group);
  add_counts(app, "--hidden-sizes", command.model.hidden_sizes, kPositive,
             "Widths of the mlp's hidden layers. Default: 256,256")
      ->group(group);
  add_real(app, "--dropout", command.model.dropout, up_to_one, "Dropout probability. Default: 0")->group(group);
  add_count(app, "--num-classes", command.num_classes, kPositive,
            "Classes of cross-entropy. Default: the largest target of the training data plus one")
      ->group(group);
  add_word(app, "--loss", command.loss, {"cross-entropy", "mse"}, "Loss function. Default: cross-entropy")
      ->group(group);
}

void add_optimizer_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Optimizer";
  OptimizerOptions& optimizer = command.trainer.optimizer;
  add_choice(app, "--optimizer", optimizer.kind, &optimizer_kind_from,
             {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}, "Optimizer. Default: adamw")
      ->group(group);
  add_real(app, "--weight-decay", optimizer.weight_decay, not_negative,
           "Weight decay. Default: 0.01 for adamw, else 0")
      ->group(group);
  add_real(app, "--adam-beta1", optimizer.beta1, below_one, "Default: 0.9")->group(group);
  add_real(app, "--adam-beta2", optimizer.beta2, below_one, "Default: 0.999")->group(group);
  add_real(app, "--adam-epsilon", optimizer.eps, not_negative, "Default: 1e-8")->group(group);
  add_real(app, "--momentum", optimizer.momentum, up_to_one, "Momentum of sgd. Default: 0.9")->group(group);
  app.add_flag("--nesterov", optimizer.nesterov, "Nesterov momentum for sgd")->group(group);
  add_real(app, "--max-grad-norm", command.trainer.max_grad_norm, not_negative,
           "Clip the gradient to this global norm. Default: 0, not clipped")
      ->group(group);
}

void add_precision_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Precision";
  TrainerOptions& trainer = command.trainer;
  LossScalerOptions& scaler = trainer.loss_scaler;
  add_choice(app, "--precision", trainer.precision, &precision_from,
             {Precision::fp32, Precision::bf16, Precision::fp16},
             "Precision of forward and backward passes; weights and moments are fp32 in all. Default: fp32")
      ->group(group);
  add_real(app, "--init-scale", scaler.init_scale, not_negative, "First loss scale of fp16. Default: 65536")
      ->group(group);
  add_real(app, "--growth-factor", scaler.growth_factor, not_negative, "Default: 2")->group(group);
  add_real(app, "--backoff-factor", scaler.backoff_factor, up_to_one, "Default: 0.5")->group(group);
  add_count(app, "--growth-interval", scaler.growth_interval, kPositive,
            "Steps without overflow after which the scale grows. Default: 2000")
      ->group(group);
  add_real(app, "--min-scale", scaler.min_scale, not_negative, "An overflow at this scale ends the run. Default: 1")
      ->group(group);
  add_real(app, "--max-scale", scaler.max_scale, not_negative, "The scale does not grow past it. Default: 16777216")
      ->group(group);
  add_count(app, "--hysteresis", scaler.hysteresis, kPositive, "Overflows before the scale backs off. Default: 1")
      ->group(group);
  app.add_flag("--static-scale", scaler.is_static, "Keep the loss scale at --init-scale")->group(group);
  add_choice(app, "--on-overflow", trainer.on_overflow, &overflow_policy_from,
             {OverflowPolicy::retry, OverflowPolicy::skip},
             "fp16 gradients overflow: compute the step again at a lower scale, or drop it. Default: retry")
      ->group(group);
  add_choice(app, "--on-nonfinite", trainer.on_nonfinite, &nonfinite_policy_from,
             {NonfinitePolicy::error, NonfinitePolicy::skip},
             "fp32 or bf16 gradients are not finite: end the run, or drop the step. Default: error")
      ->group(group);
  add_count(app, "--max-nonfinite", trainer.max_nonfinite, kPositive, "Steps in a row that skip may drop. Default: 3")
      ->group(group);
}

void add_checkpoint_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Checkpoints";
  app.add_option("--checkpoint-dir", command.checkpoint_dir,
                 "Folder of this run's checkpoints. Default: none are saved")
      ->type_name("DIR")
      ->group(group);
  app.add_option(
         "--resume", command.resume,
         "auto: go on from the newest whole checkpoint of the folder, if any; never: start anew (the folder must "
         "hold none); or a checkpoint file: go on from it, and once it has, from the folder's newest. Default: auto")
      ->type_name("WHAT")
      ->group(group);
  app.add_option("--finetune-from", command.finetune_from, "Start a new run from the weights of this checkpoint")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--allow-missing", command.allow_missing, "finetune: tensors the file does not have keep their values")
      ->group(group);
  app.add_flag("--allow-unexpected", command.allow_unexpected, "finetune: pass over tensors the model does not have")
      ->group(group);
  add_count(app, "--save-steps", command.save_steps, kNotNegative,
            "Save every so many steps. Default: 0, not by steps")
      ->group(group);
  add_real(app, "--save-interval-seconds", command.save_interval_seconds, not_negative,
           "Save when so many seconds have gone. Default: 0, not by time")
      ->group(group);
  app.add_flag("--save-at-epoch-end", command.save_at_epoch_end, "Save at the end of every epoch")->group(group);
  add_count(app, "--save-total-limit", command.save_total_limit, kNotNegative,
            "Keep the newest so many checkpoints. Default: 0, all")
      ->group(group);
  add_count(app, "--save-keep-every", command.save_keep_every, kNotNegative,
            "Never remove checkpoints whose step divides by this. Default: 0")
      ->group(group);
  add_word(app, "--on-save-failure", command.on_save_failure, {"continue", "abort"},
           "What a failed save does to the run. Default: continue, with a warning")
      ->group(group);
  add_word(app, "--checkpoint-writer", command.checkpoint_writer, {"auto", "collective", "direct"},
           "How the data is written: HDF5's collective calls, or each rank directly. Default: auto")
      ->group(group);
  add_word(app, "--async-save", command.async_save, {"auto", "on", "off"},
           "Write in a thread while the run goes on. Default: auto")
      ->group(group);
  app.add_flag("--no-preflight", command.no_preflight, "Skip the check of the checkpoint folder at the start")
      ->group(group);
}

std::string joined_stages() {
  std::string names;
  for (const std::string& name : SaveFault::stage_names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

void add_launch_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "This launch";
  add_count(app, "--stop-after-steps", command.stop_after_steps, kPositive,
            "Take so many steps of the same plan, save and leave with exit code 85")
      ->group(group);
  add_count(app, "--evaluation-steps", command.evaluation_steps, kNotNegative,
            "Also evaluate every so many steps. Default: 0, at the end of epochs")
      ->group(group);
  add_count(app, "--evaluation-batch-size", command.trainer.evaluation_batch_size, kPositive,
            "Samples of a forward pass of an evaluation. Default: 256")
      ->group(group);
  app.add_option("--stop-signals", command.stop_signals,
                 "Signals that make the run save and leave with exit code 85. Default: TERM,USR1,USR2")
      ->type_name("NAMES")
      ->group(group);
  app.add_option("--time-limit", command.time_limit,
                 "When this launch must end, as Slurm writes it (minutes, hh:mm:ss). Default: what Slurm says")
      ->type_name("TIME")
      ->group(group);
  add_real(app, "--deadline-margin", command.deadline_margin_seconds, not_negative,
           "Seconds to spare before the time limit, beside the longest step and save. Default: 30")
      ->group(group);
  add_count(app, "--max-restarts-without-progress", command.max_restarts_without_progress, kNotNegative,
            "Launches that may begin at the same step before exit code 86; 0: no limit. Default: 3")
      ->group(group);
  add_word(app, "--communicator", command.communicator, {"auto", "mpi", "shared-memory"},
           "How ranks exchange gradients. Default: auto: shared memory where all are on one node")
      ->group(group);
  add_count(app, "--num-threads", command.num_threads, kPositive,
            "Threads inside a rank's operations; another number may give other last bits. Default: 1")
      ->group(group);
  add_word(app, "--progress", command.progress, {"auto", "bar", "lines"},
           "Show progress as a bar on a terminal, or as lines. Default: auto")
      ->group(group);
  add_count(app, "--log-steps", command.log_steps, kPositive, "Print a line every so many steps. Default: 50")
      ->group(group);
  app.add_option("--metrics-file", command.metrics_file,
                 "One JSON object a step. A run that goes on appends to its own; a file of anything else is refused. "
                 "Default: metrics.jsonl in the checkpoint folder")
      ->type_name("FILE")
      ->group(group);
  app.add_option(
         "--inject", command.inject,
         "Drills: overflow@STEP,STEP makes the gradients of these steps (the first is 1) infinite once; "
         "crash@save:STAGE kills the process at a stage of a save, fail@save:STAGE lets the save fail there (" +
             joined_stages() + "); ,step=N and ,rank=N strike one save, one rank")
      ->type_name("DRILL")
      ->group(group);
}

void add_device_flags(CLI::App& app, TrainCommand& command) {
  const std::string group = "Devices";
  add_choice(app, "--device", command.device, &device_kind_from,
             {DeviceKind::automatic, DeviceKind::cpu, DeviceKind::cuda},
             "Where to compute, one device a rank. Default: auto: CUDA where every rank sees a device, else the CPU")
      ->group(group);
  add_choice(app, "--reduction", command.reduction, &reduction_order_from,
             {ReductionOrder::exact, ReductionOrder::fast},
             "Order in which the ranks' gradients are added: the same for any number of ranks, or NCCL's. The CPU is "
             "always exact. Default: fast, exact with --deterministic")
      ->group(group);
  app.add_flag(
         "--deterministic", command.deterministic,
         "Only algorithms that give the same bits whenever they run (slower); with the exact reduction a run is "
         "then meant to be the same on any number of devices")
      ->group(group);
  add_count(app, "--bucket-cap-mb", command.bucket_cap_mb, whole_mebibytes,
            "Gradients leave in pieces of so many MiB while the backward pass goes on. Default: 25")
      ->group(group);
  app.add_flag("--cuda-graph", command.cuda_graph,
               "Launch the passes of a full micro-batch as one CUDA graph, after which its gradients leave; where it "
               "cannot be recorded, a line says so")
      ->group(group);
  add_real(
      app, "--communication-timeout", command.device_settings.timeout_seconds, not_negative,
      "Seconds after which a transfer between devices, or an agreement of their ranks, is given up and the missing "
      "ranks are named; 0: never. Default: 600")
      ->group(group);
}

}  // namespace

void resolve_device_options(TrainCommand& command) {
  if (command.deterministic && command.reduction == ReductionOrder::fast)
    throw Error(ErrorKind::usage,
                "--deterministic and --reduction fast contradict each other (the fast order may change from run to "
                "run): leave one of them out");
  command.device_settings.reduction =
      command.reduction.value_or(command.deterministic ? ReductionOrder::exact : ReductionOrder::fast);
  command.trainer.bucket_bytes = command.bucket_cap_mb << bits_of_mebibyte;
}

void add_train_flags(CLI::App& app, TrainCommand& command) {
  command.trainer.evaluation_batch_size = 256;
  add_data_flags(app, command);
  add_model_flags(app, command);
  add_plan_flags(app, command.trainer.plan);
  add_optimizer_flags(app, command);
  add_precision_flags(app, command);
  add_checkpoint_flags(app, command);
  add_launch_flags(app, command);
  add_device_flags(app, command);
}

}  // namespace lockstep
