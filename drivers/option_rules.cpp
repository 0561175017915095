#include "drivers/option_rules.hpp"

#include <algorithm>

#include "drivers/plan_flags.hpp"

namespace lockstep {
namespace {

/// Options that do nothing without another one.
struct Partner {
  std::vector<const char*> options;
  const char* needed;
  const char* why;
};

const std::vector<Partner>& partners() {
  static const std::vector<Partner> list = {
      {{"--resume", "--save-steps", "--save-interval-seconds", "--save-at-epoch-end", "--save-total-limit",
        "--save-keep-every", "--on-save-failure", "--checkpoint-writer", "--async-save", "--no-preflight",
        "--max-restarts-without-progress"},
       "--checkpoint-dir",
       "no checkpoint is saved or looked for"},
      {{"--allow-missing", "--allow-unexpected"}, "--finetune-from", "no weights are taken from a file"},
      {{"--evaluation-steps", "--evaluation-batch-size"}, "--validation-data", "nothing is evaluated"}};
  return list;
}

/// True when the option was given; a flag also when a configuration file says "false", which gives nothing.
bool is_given(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option(name);
  if (option->count() == 0) return false;
  const bool is_flag = option->get_items_expected_max() == 0;
  return !is_flag || option->as<bool>();
}

std::vector<std::string> given_of(const CLI::App& app, const std::vector<const char*>& names) {
  std::vector<std::string> given;
  for (const char* name : names)
    if (is_given(app, name)) given.emplace_back(name);
  return given;
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void require_partner(const std::vector<std::string>& given, const char* needed, const char* why) {
  if (given.empty()) return;
  const bool one = given.size() == 1;
  throw Error(ErrorKind::usage, text(joined(given), one ? " has" : " have", " no effect without ", needed, " (", why,
                                     "): give ", needed, ", or leave ", one ? "it" : "them", " out"));
}

/// Options that belong to a choice, and whether it is this run's.
struct Choice {
  std::vector<const char*> options;
  bool is_taken;
  std::string taken;
  const char* users;
};

std::vector<Choice> choices(const TrainCommand& command) {
  const TrainerOptions& trainer = command.trainer;
  const bool is_sgd = trainer.optimizer.kind == OptimizerKind::sgd;
  const bool is_fp16 = trainer.precision == Precision::fp16;
  const std::string optimizer = "the optimizer is " + name_of(trainer.optimizer.kind);
  const std::string precision = "the precision is " + name_of(trainer.precision);
  const bool is_static = is_fp16 && trainer.loss_scaler.is_static;
  const bool never_skips = !is_fp16 && trainer.on_nonfinite != NonfinitePolicy::skip;
  return {{{"--hidden-sizes"}, command.model.kind == "mlp", "the model is " + command.model.kind, "mlp"},
          {{"--num-classes"}, command.loss == "cross-entropy", "the loss is " + command.loss, "cross-entropy"},
          {{"--adam-beta1", "--adam-beta2", "--adam-epsilon"}, !is_sgd, optimizer, "adamw, adam"},
          {{"--momentum", "--nesterov"}, is_sgd, optimizer, "sgd"},
          {{"--init-scale", "--growth-factor", "--backoff-factor", "--growth-interval", "--min-scale", "--max-scale",
            "--hysteresis", "--static-scale", "--on-overflow"},
           is_fp16,
           precision,
           "fp16"},
          {{"--growth-factor", "--backoff-factor", "--growth-interval", "--hysteresis"},
           !is_static,
           "the loss scale is static",
           "a scale that moves"},
          {{"--on-nonfinite", "--max-nonfinite"}, !is_fp16, precision, "fp32, bf16"},
          {{"--max-nonfinite"}, !never_skips, "--on-nonfinite is error", "--on-nonfinite skip"}};
}

}  // namespace

void require_partners(const CLI::App& app, const TrainCommand& command) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end())
      throw Error(ErrorKind::usage, text(option->get_name(), " is empty (a variable of the shell that is not set?): ",
                                         "give a value, or leave the option out"));
  }
  for (const Partner& partner : partners())
    if (!is_given(app, partner.needed)) require_partner(given_of(app, partner.options), partner.needed, partner.why);
  const bool has_plateau = command.trainer.plan.schedule.kind == ScheduleKind::reduce_on_plateau;
  if (has_plateau && command.validation_data.empty())
    require_partner({"--lr-scheduler-type reduce-on-plateau"}, "--validation-data",
                    "nothing is evaluated, so the rate would never fall");
  const bool kills_a_save = std::any_of(command.inject.begin(), command.inject.end(), [](const std::string& drill) {
    return drill.find("@save") != std::string::npos;
  });
  if (kills_a_save && command.checkpoint_dir.empty())
    require_partner({"--inject ...@save"}, "--checkpoint-dir", "there is no save");
  const bool resumes_file = command.resume != "auto" && command.resume != "never";
  if (resumes_file && !command.finetune_from.empty())
    throw Error(
        ErrorKind::usage,
        "--finetune-from and --resume FILE contradict each other (a new run from a file's weights, or the old "
        "run that goes on): leave one of them out");
}

std::vector<std::string> unused_train_flags(const CLI::App& app, const TrainCommand& command) {
  std::vector<std::string> sentences = unused_plan_flags(app, command.trainer.plan);
  for (const Choice& choice : choices(command)) {
    if (choice.is_taken) continue;
    for (const std::string& name : given_of(app, choice.options))
      sentences.push_back(text(name, " is not used: ", choice.taken, " (it belongs to ", choice.users, ")"));
  }
  return sentences;
}

std::vector<std::string> given_device_flags(const CLI::App& app) {
  return given_of(app, {"--bucket-cap-mb", "--cuda-graph", "--communication-timeout"});
}

}  // namespace lockstep
