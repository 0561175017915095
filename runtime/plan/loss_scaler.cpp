#include "runtime/plan/loss_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

void check(const LossScalerOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& next) {
    throw Error(ErrorKind::usage, text(what, ": ", next));
  };
  const double limits[] = {options.init_scale, options.min_scale, options.max_scale};
  for (const double limit : limits) {
    if (!std::isfinite(limit) || limit < 0.0 || !std::isfinite(static_cast<float>(limit))) {
      refuse(text("a limit of the loss scale is ", shortest(limit), " (float32 must hold it)"),
             "give a number between 0 and 3e38");
    }
  }
  if (options.init_scale <= 0.0 || options.init_scale < options.min_scale || options.init_scale > options.max_scale) {
    refuse(text("--init-scale ", shortest(options.init_scale), " does not lie between the minimum ",
                shortest(options.min_scale), " and the maximum ", shortest(options.max_scale)),
           "change one of them");
  }
  if (options.is_static) return;
  if (!(options.growth_factor > 1.0) || !std::isfinite(options.growth_factor)) {
    refuse(text("--growth-factor is ", shortest(options.growth_factor)), "give a number above 1");
  }
  if (!(options.backoff_factor > 0.0 && options.backoff_factor < 1.0)) {
    refuse(text("--backoff-factor is ", shortest(options.backoff_factor)), "give a number between 0 and 1");
  }
  if (options.growth_interval < 1 || options.hysteresis < 1) {
    refuse(text("--growth-interval is ", options.growth_interval, " and the hysteresis is ", options.hysteresis,
                " (both count steps)"),
           "give positive numbers");
  }
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  if (options_.enabled) check(options_);
}

LossScaler LossScaler::resumed(const LossScalerOptions& options, const AttributeTree& stored) {
  LossScaler scaler(options);
  if (stored.count("loss_scaler") == 0) return scaler;
  const LossScaler before = from(stored);
  scaler.num_overflows_ = before.num_overflows_;
  if (!options.enabled || !before.options_.enabled) return scaler;
  scaler.growth_tracker_ = before.growth_tracker_;
  scaler.overflows_in_a_row_ = before.overflows_in_a_row_;
  scaler.scale_ =
      std::clamp(before.scale_, static_cast<float>(options.min_scale), static_cast<float>(options.max_scale));
  return scaler;
}

float LossScaler::scale() const { return options_.enabled ? scale_ : 1.0f; }

bool LossScaler::at_minimum() const {
  return !options_.enabled || options_.is_static || scale_ <= static_cast<float>(options_.min_scale);
}

void LossScaler::update(bool overflowed) {
  if (overflowed) ++num_overflows_;
  if (!options_.enabled || options_.is_static) return;
  if (overflowed) {
    growth_tracker_ = 0;
    ++overflows_in_a_row_;
    if (overflows_in_a_row_ >= options_.hysteresis) back_off();
    return;
  }
  overflows_in_a_row_ = 0;
  ++growth_tracker_;
  if (growth_tracker_ >= options_.growth_interval) {
    growth_tracker_ = 0;
    grow();
  }
}

void LossScaler::back_off() {
  const float reduced = static_cast<float>(static_cast<double>(scale_) * options_.backoff_factor);
  scale_ = std::max(reduced, static_cast<float>(options_.min_scale));
}

void LossScaler::grow() {
  const float grown = static_cast<float>(static_cast<double>(scale_) * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = std::min(grown, static_cast<float>(options_.max_scale));
}

AttributeGroup LossScaler::to_attributes() const {
  return {{"enabled", std::int64_t{options_.enabled}},
          {"scale", static_cast<double>(scale())},
          {"init_scale", options_.init_scale},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"growth_tracker", growth_tracker_},
          {"min_scale", options_.min_scale},
          {"max_scale", options_.max_scale},
          {"hysteresis", options_.hysteresis},
          {"overflows_in_a_row", overflows_in_a_row_},
          {"is_static", std::int64_t{options_.is_static}},
          {"num_overflows", num_overflows_}};
}

LossScaler LossScaler::from(const AttributeTree& tree) {
  const auto whole = [&](const char* name) { return attribute<std::int64_t>(tree, "loss_scaler", name); };
  const auto real = [&](const char* name) { return attribute<double>(tree, "loss_scaler", name); };
  LossScalerOptions options;
  options.enabled = whole("enabled") != 0;
  options.init_scale = real("init_scale");
  options.growth_factor = real("growth_factor");
  options.backoff_factor = real("backoff_factor");
  options.growth_interval = whole("growth_interval");
  options.min_scale = real("min_scale");
  options.max_scale = real("max_scale");
  options.hysteresis = whole("hysteresis");
  options.is_static = whole("is_static") != 0;
  LossScaler scaler(options);
  scaler.scale_ = static_cast<float>(real("scale"));
  scaler.growth_tracker_ = whole("growth_tracker");
  scaler.overflows_in_a_row_ = whole("overflows_in_a_row");
  scaler.num_overflows_ = whole("num_overflows");
  if (!std::isfinite(scaler.scale_) || scaler.scale_ < 0.0f || scaler.growth_tracker_ < 0) {
    throw Error(ErrorKind::failed, text("the stored loss scale is ", shortest(scaler.scale_), " with growth tracker ",
                                        scaler.growth_tracker_, ": take another checkpoint"));
  }
  return scaler;
}

}  // namespace lockstep
