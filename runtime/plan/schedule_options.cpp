#include "runtime/plan/schedule_options.hpp"

#include <string>
#include <utility>

#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

std::string printed(const std::string& value) { return value; }
std::string printed(double value) { return shortest(value); }
std::string printed(std::int64_t value) { return text(value); }
template <class T>
std::string printed(const std::optional<T>& value) {
  return value ? printed(*value) : "not given";
}
template <class T>
std::string printed(const std::vector<T>& values) {
  std::string all;
  for (const T value : values) all += text(all.empty() ? "" : ",", printed(value));
  return all.empty() ? "not given" : all;
}

/// Calls visit(name, member) for every plain option: what is stored, read and compared in one place.
template <class Options, class Visit>
void for_each_option(Options& options, Visit visit) {
  visit("learning_rate", options.learning_rate);
  visit("warmup_steps_option", options.warmup_steps);
  visit("warmup_samples", options.warmup_samples);
  visit("warmup_ratio", options.warmup_ratio);
  visit("num_cycles", options.num_cycles);
  visit("min_lr", options.min_lr);
  visit("power", options.power);
  visit("lr_end", options.lr_end);
  visit("timescale", options.timescale);
  visit("decay_steps", options.decay_steps);
  visit("step_size", options.step_size);
  visit("milestones", options.milestones);
  visit("factors", options.factors);
  visit("gamma", options.gamma);
  visit("plateau_factor", options.plateau_factor);
  visit("plateau_patience", options.plateau_patience);
  visit("plateau_threshold", options.plateau_threshold);
  visit("plateau_cooldown", options.plateau_cooldown);
}

struct Writer {
  AttributeGroup& group;

  template <class T>
  void operator()(const char* name, const T& value) const {
    group[name] = value;
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) const {
    if (value) group[name] = *value;
  }
  template <class T>
  void operator()(const char* name, const std::vector<T>& values) const {
    if (!values.empty()) group[name] = values;
  }
};

struct Reader {
  const AttributeTree& tree;

  template <class T>
  void operator()(const char* name, T& value) const {
    value = attribute<T>(tree, "schedule", name);
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) const {
    if (has_attribute(tree, "schedule", name)) value = attribute<T>(tree, "schedule", name);
  }
  template <class T>
  void operator()(const char* name, std::vector<T>& values) const {
    if (has_attribute(tree, "schedule", name)) values = attribute<std::vector<T>>(tree, "schedule", name);
  }
};

std::vector<std::pair<std::string, std::string>> spelled(const ScheduleOptions& options) {
  std::vector<std::pair<std::string, std::string>> all{{"lr_scheduler_type", name_of(options.kind)}};
  for_each_option(options, [&](const char* name, const auto& value) {
    const std::string flag = std::string(name) == "warmup_steps_option" ? "warmup_steps" : name;
    all.emplace_back(flag, printed(value));
  });
  return all;
}

}  // namespace

void store_schedule_options(const ScheduleOptions& options, AttributeGroup& group) {
  group["kind"] = name_of(options.kind);
  for_each_option(options, Writer{group});
}

ScheduleOptions schedule_options_from(const AttributeTree& tree,
                                      const std::function<double(double, double)>& custom) {
  ScheduleOptions options;
  options.kind = schedule_kind_from(attribute<std::string>(tree, "schedule", "kind"));
  for_each_option(options, Reader{tree});
  options.custom = custom;
  return options;
}

std::vector<PlanChange> differences(const ScheduleOptions& before, const ScheduleOptions& after) {
  std::vector<PlanChange> changes;
  const auto old_values = spelled(before);
  const auto new_values = spelled(after);
  for (std::size_t i = 0; i < old_values.size(); ++i) {
    const bool same_ratio =
        old_values[i].first == "warmup_ratio" && before.warmup_ratio && after.warmup_ratio &&
        Decimal(*before.warmup_ratio, "--warmup-ratio") == Decimal(*after.warmup_ratio, "--warmup-ratio");
    if (old_values[i].second == new_values[i].second || same_ratio) continue;
    changes.push_back({old_values[i].first, old_values[i].second, new_values[i].second});
  }
  return changes;
}

std::int64_t resolve_warmup(const ScheduleOptions& options, const BatchPlan& batch, std::int64_t total_steps) {
  const bool has_ratio = options.warmup_ratio && !Decimal(*options.warmup_ratio, "--warmup-ratio").is_zero();
  const int given = (options.warmup_steps.value_or(0) != 0) + (options.warmup_samples.value_or(0) != 0) + has_ratio;
  if (given > 1) {
    throw Error(ErrorKind::usage, text("the warm-up is given as --warmup-steps ", printed(options.warmup_steps),
                                       ", --warmup-samples ", printed(options.warmup_samples), " and --warmup-ratio ",
                                       printed(options.warmup_ratio), " (they may disagree): give one of them"));
  }
  if (options.warmup_steps.value_or(0) < 0 || options.warmup_samples.value_or(0) < 0) {
    throw Error(ErrorKind::usage, text("the warm-up is ", printed(options.warmup_steps), " steps or ",
                                       printed(options.warmup_samples), " samples: give a number of at least 0"));
  }
  if (options.kind == ScheduleKind::constant) return 0;
  if (has_ratio) return Decimal(*options.warmup_ratio, "--warmup-ratio").ceil_times(total_steps);
  if (options.warmup_samples.value_or(0) == 0) return options.warmup_steps.value_or(0);
  const std::int64_t samples = *options.warmup_samples;
  if (!batch.has_length()) return ceil_div(samples, batch.global_batch_size);
  const std::int64_t epochs = samples / batch.used_samples();
  const std::int64_t rest = samples % batch.used_samples();
  std::int64_t steps = batch.steps_between(0, rest);
  if (batch.position_after(steps) < rest) ++steps;
  return narrow(static_cast<Int128>(epochs) * batch.steps_per_epoch() + steps, "the number of warm-up steps");
}

}  // namespace lockstep
