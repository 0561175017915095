#include "drivers/train_report.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

namespace lockstep {
namespace {

constexpr double redraw_seconds = 0.1;

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 256> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, values...);
  return buffer.data();
}

/// A number as JSON; what JSON cannot hold becomes a word.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 60.0) return formatted("%.1f s", seconds);
  const auto whole = static_cast<long long>(seconds);
  return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string plan_text(const TrainingPlan& plan) {
  const BatchPlan& batch = plan.batch();
  std::ostringstream out;
  out << "plan         " << batch.num_samples << " samples, global batch " << batch.global_batch_size
      << ", micro-batch " << batch.micro_batch_size << " (" << batch.accumulation_steps()
      << " a step on the busiest of " << batch.num_ranks << (batch.num_ranks == 1 ? " rank" : " ranks") << ")\n"
      << "             " << batch.steps_per_epoch() << " steps an epoch, " << plan.total_steps() << " in all, "
      << plan.steps_left() << " left, warm-up " << plan.warmup_steps() << (batch.drop_last ? ", tails dropped" : "");
  for (const PlanChange& change : plan.changes())
    out << "\nresume       " << change.name << ": " << change.before << " -> " << change.after;
  for (const std::string& warning : plan.warnings()) out << "\nwarning      " << warning;
  return out.str();
}

ProgressStyle progress_style_of(const std::string& name) {
  if (name != "auto") return name == "bar" ? ProgressStyle::bar : ProgressStyle::lines;
  winsize size{};
  const bool has_width =
      isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return has_width ? ProgressStyle::bar : ProgressStyle::lines;
}

TrainReport::TrainReport(const MetricsTarget& metrics, std::int64_t log_steps, ProgressStyle style)
    : log_steps_(log_steps), style_(style) {
  if (!metrics.file.empty()) metrics_.emplace(metrics);
}

void TrainReport::say(const std::string& line) {
  if (line_is_open_) std::cout << "\r\033[K";
  line_is_open_ = false;
  std::cout << line << std::endl;
}

std::string TrainReport::progress_line(const StepReport& report, const TrainingPlan& plan,
                                       const LossScaler& scaler) const {
  const Progress& progress = plan.progress();
  const std::int64_t total = plan.total_steps();
  const double left = samples_per_second_ > 0.0
                          ? static_cast<double>(plan.steps_left()) *
                                static_cast<double>(plan.batch().global_batch_size) / samples_per_second_
                          : 0.0;
  std::string line = formatted("step %lld/%lld  epoch %.2f  loss %.4f  lr %.3e  |g| %.3g  %.0f samples/s  %s left",
                               static_cast<long long>(progress.steps_taken), static_cast<long long>(total),
                               plan.epochs_done(), report.loss, report.plan.learning_rate, report.gradient_norm,
                               samples_per_second_, duration_text(left).c_str());
  if (scaler.options().enabled)
    line +=
        formatted("  scale %g  overflows %lld", report.loss_scale, static_cast<long long>(scaler.num_overflows()));
  if (progress.steps_skipped > 0) line += formatted("  skipped %lld", static_cast<long long>(progress.steps_skipped));
  return line;
}

void TrainReport::write_metrics(nlohmann::ordered_json line) {
  if (!metrics_) return;
  if (const auto note = metrics_->append(std::move(line))) say("warning      " + *note);
}

void TrainReport::step(const StepReport& report, const TrainingPlan& plan, const LossScaler& scaler) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point now = Clock::now();
  samples_ += report.plan.num_samples;
  samples_per_second_ = static_cast<double>(samples_) / std::chrono::duration<double>(now - start_).count();
  const Progress& progress = plan.progress();
  write_metrics(nlohmann::ordered_json{
      {"step", progress.steps_taken},
      {"epoch", report.plan.epoch},
      {"consumed_samples", progress.consumed_samples},
      {"lr", number(report.plan.learning_rate)},
      {"loss", number(report.loss)},
      {"grad_norm", number(report.gradient_norm)},
      {"loss_scale", number(report.loss_scale)},
      {"applied", report.applied},
      {"attempts", report.attempts},
      {"overflows", scaler.num_overflows()},
      {"growth_tracker", scaler.growth_tracker()},
      {"ranks", plan.batch().num_ranks},
      {"seconds", number(report.seconds)},
      {"samples_per_second", number(static_cast<double>(report.plan.num_samples) / report.seconds)}});
  const bool is_last = plan.finished();
  if (style_ == ProgressStyle::bar) {
    if (!is_last && std::chrono::duration<double>(now - last_drawn_).count() < redraw_seconds) return;
    last_drawn_ = now;
    constexpr std::int64_t width = 20;
    const std::int64_t filled = width * progress.steps_taken / std::max<std::int64_t>(1, plan.total_steps());
    std::cout << "\r\033[K[" << std::string(static_cast<std::size_t>(filled), '#')
              << std::string(static_cast<std::size_t>(width - filled), '.') << "] "
              << progress_line(report, plan, scaler) << std::flush;
    line_is_open_ = true;
    if (is_last) std::cout << std::endl;
    if (is_last) line_is_open_ = false;
  } else if (is_last || progress.steps_taken % log_steps_ == 0) {
    say(progress_line(report, plan, scaler));
  }
}

void TrainReport::evaluation(const std::map<std::string, double>& results, const Progress& progress) {
  nlohmann::ordered_json object = {{"step", progress.steps_taken}};
  std::string line = text("evaluation after step ", progress.steps_taken, ":");
  for (const auto& [name, value] : results) {
    object["validation_" + name] = number(value);
    line += formatted("  %s %.4f", name.c_str(), value);
  }
  write_metrics(std::move(object));
  say(line);
}

}  // namespace lockstep
