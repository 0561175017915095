#include "runtime/train/precision.hpp"

#include <ATen/autocast_mode.h>

#include "runtime/plan/error.hpp"

namespace lockstep {

std::string name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
  }
  return "unknown";
}

Precision precision_from(std::string_view name) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
    if (name_of(precision) == name) return precision;
  throw Error(ErrorKind::usage, text("the precision '", name, "' is not known: use fp32, bf16 or fp16"));
}

AutocastGuard::AutocastGuard(Precision precision, c10::DeviceType device)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device, precision != Precision::fp32);
  if (precision == Precision::fp16) at::autocast::set_autocast_dtype(device, at::kHalf);
  if (precision == Precision::bf16) at::autocast::set_autocast_dtype(device, at::kBFloat16);
}

AutocastGuard::~AutocastGuard() {
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();  // also within an autocast of the caller's
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_type_);
}

std::uint64_t micro_batch_seed(std::uint64_t run_seed, std::int64_t step, std::int64_t micro_batch) {
  // Two rounds of the SplitMix64 finalizer (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
  // 2014), one for each coordinate.
  const auto mixed = [](std::uint64_t value) {
    value += 0x9E3779B97F4A7C15ULL;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  };
  const std::uint64_t of_step = mixed(mixed(run_seed) ^ static_cast<std::uint64_t>(step));
  return mixed(of_step ^ static_cast<std::uint64_t>(micro_batch));
}

}  // namespace lockstep
