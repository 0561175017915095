#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/plan/plan_options.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// The choices by the names that command lines, messages and checkpoints use. Names are spelled with hyphens;
/// reading accepts underscores and capitals too. An unknown name throws Error(usage) that lists the known ones.
std::string name_of(ScheduleKind kind);
std::string name_of(ShuffleKind kind);
std::string name_of(RankChangePolicy policy);
std::string name_of(LrScaling scaling);
std::string name_of(ScheduleFrom source);
std::string name_of(ReductionOrder order);

ScheduleKind schedule_kind_from(std::string_view name);
ShuffleKind shuffle_kind_from(std::string_view name);
RankChangePolicy rank_change_policy_from(std::string_view name);
LrScaling lr_scaling_from(std::string_view name);
ScheduleFrom schedule_from_from(std::string_view name);
ReductionOrder reduction_order_from(std::string_view name);

/// All schedules, for help texts and tests. `custom` is for users of the library only.
std::span<const ScheduleKind> all_schedule_kinds();

}  // namespace lockstep
