#include "runtime/plan/option_names.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

template <class Choice, std::size_t n>
using Names = std::array<std::pair<Choice, std::string_view>, n>;

// The first name of a choice is the one that is printed.
constexpr Names<ScheduleKind, 18> schedule_names{{
    {ScheduleKind::constant, "constant"},
    {ScheduleKind::constant_with_warmup, "constant-with-warmup"},
    {ScheduleKind::linear, "linear"},
    {ScheduleKind::cosine, "cosine"},
    {ScheduleKind::cosine_with_restarts, "cosine-with-restarts"},
    {ScheduleKind::cosine_with_min_lr, "cosine-with-min-lr"},
    {ScheduleKind::polynomial, "polynomial"},
    {ScheduleKind::inverse_sqrt, "inverse-sqrt"},
    {ScheduleKind::warmup_stable_decay, "warmup-stable-decay"},
    {ScheduleKind::one_cycle, "one-cycle"},
    {ScheduleKind::step, "step"},
    {ScheduleKind::multi_step, "multi-step"},
    {ScheduleKind::exponential, "exponential"},
    {ScheduleKind::piecewise_constant, "piecewise-constant"},
    {ScheduleKind::reduce_on_plateau, "reduce-on-plateau"},
    {ScheduleKind::custom, "custom"},
    {ScheduleKind::warmup_stable_decay, "wsd"},
    {ScheduleKind::reduce_on_plateau, "reduce-lr-on-plateau"},
}};
constexpr Names<ShuffleKind, 2> shuffle_names{
    {{ShuffleKind::permutation, "permutation"}, {ShuffleKind::sequential, "sequential"}}};
constexpr Names<RankChangePolicy, 2> policy_names{{{RankChangePolicy::keep_global_batch, "keep-global-batch"},
                                                   {RankChangePolicy::keep_rank_batch, "keep-rank-batch"}}};
constexpr Names<LrScaling, 3> scaling_names{
    {{LrScaling::none, "none"}, {LrScaling::linear, "linear"}, {LrScaling::sqrt, "sqrt"}}};
constexpr Names<ScheduleFrom, 3> source_names{{{ScheduleFrom::must_agree, "must-agree"},
                                               {ScheduleFrom::checkpoint, "checkpoint"},
                                               {ScheduleFrom::command_line, "command-line"}}};
constexpr Names<ReductionOrder, 2> order_names{{{ReductionOrder::exact, "exact"}, {ReductionOrder::fast, "fast"}}};
constexpr std::array<ScheduleKind, 16> schedule_kinds = [] {
  std::array<ScheduleKind, 16> kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = schedule_names[i].first;
  return kinds;
}();

template <class Choice, std::size_t n>
std::string find_name(const Names<Choice, n>& names, Choice choice) {
  for (const auto& [known, name] : names) {
    if (known == choice) return std::string(name);
  }
  return "unknown";
}

template <class Choice, std::size_t n>
Choice find_choice(const Names<Choice, n>& names, std::string_view given, std::string_view what) {
  std::string folded(given);
  std::transform(folded.begin(), folded.end(), folded.begin(),
                 [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
  std::string known;
  for (const auto& [choice, name] : names) {
    if (name == folded) return choice;
    known += text(known.empty() ? "" : ", ", name);
  }
  throw Error(ErrorKind::usage, text("'", given, "' is no ", what, " (known: ", known, "): choose one of them"));
}

}  // namespace

std::string name_of(ScheduleKind kind) { return find_name(schedule_names, kind); }
std::string name_of(ShuffleKind kind) { return find_name(shuffle_names, kind); }
std::string name_of(RankChangePolicy policy) { return find_name(policy_names, policy); }
std::string name_of(LrScaling scaling) { return find_name(scaling_names, scaling); }
std::string name_of(ScheduleFrom source) { return find_name(source_names, source); }
std::string name_of(ReductionOrder order) { return find_name(order_names, order); }

ScheduleKind schedule_kind_from(std::string_view name) {
  return find_choice(schedule_names, name, "learning rate schedule");
}
ShuffleKind shuffle_kind_from(std::string_view name) { return find_choice(shuffle_names, name, "kind of shuffle"); }
RankChangePolicy rank_change_policy_from(std::string_view name) {
  return find_choice(policy_names, name, "policy for a changed number of ranks");
}
LrScaling lr_scaling_from(std::string_view name) {
  return find_choice(scaling_names, name, "way to scale the learning rate");
}
ScheduleFrom schedule_from_from(std::string_view name) {
  return find_choice(source_names, name, "source of the schedule");
}
ReductionOrder reduction_order_from(std::string_view name) {
  return find_choice(order_names, name, "order of a reduction");
}

std::span<const ScheduleKind> all_schedule_kinds() { return schedule_kinds; }

}  // namespace lockstep
