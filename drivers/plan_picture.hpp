#pragma once

#include "drivers/plan_request.hpp"
#include "drivers/plan_svg.hpp"

namespace lockstep {

/// The picture of an answer: learning rate over steps, with warm-up and epochs marked. Rank counts with different
/// schedules are drawn over epochs of data (a stream: over samples), where they can be compared; those with the same
/// one share a curve. Long runs are thinned out to what a screen shows, with their highest and lowest rates.
Chart schedule_chart(const PlanAnswer& answer);

}  // namespace lockstep
