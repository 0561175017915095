#include "runtime/plan/batch_options.hpp"

#include <algorithm>
#include <limits>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t usual_micro_batch = 8;
constexpr std::string_view global_flag = "--global-batch-size";
constexpr std::string_view micro_flag = "--micro-batch-size";
constexpr std::string_view accumulation_flag = "--gradient-accumulation-steps";

void require_positive(const std::optional<std::int64_t>& value, std::string_view flag) {
  if (value && *value <= 0) {
    throw Error(ErrorKind::usage,
                text(flag, " is ", *value, " (it counts samples or batches): give a positive number"));
  }
}

void check_given(const PlanOptions& options, int num_ranks) {
  require_positive(options.global_batch_size, global_flag);
  require_positive(options.micro_batch_size, micro_flag);
  require_positive(options.gradient_accumulation_steps, accumulation_flag);
  if (num_ranks <= 0) {
    throw Error(ErrorKind::usage, text("the number of ranks is ", num_ranks, ": give a positive number"));
  }
}

/// The data, as the plan sees it.
BatchPlan plan_of(const PlanOptions& options, const DataShape& data, int num_ranks,
                  std::vector<std::string>& remarks) {
  BatchPlan plan;
  plan.num_ranks = num_ranks;
  plan.drop_last = options.drop_last;
  if (!data.samples_of_rank.empty()) {
    if (data.num_samples || data.samples_of_rank.size() != static_cast<std::size_t>(num_ranks)) {
      throw Error(ErrorKind::usage, text("data that shards itself is described for ", data.samples_of_rank.size(),
                                         " ranks", data.num_samples ? " and as a whole" : "", ", and the run has ",
                                         num_ranks, " ranks: give one number of samples for each rank"));
    }
    plan.samples_of_rank = data.samples_of_rank;
    for (const std::int64_t own : data.samples_of_rank) {
      if (own < 0) throw Error(ErrorKind::usage, text("a rank has ", own, " samples: check the data"));
      plan.num_samples = narrow(static_cast<Int128>(plan.num_samples) + own, "the number of samples");
    }
  } else if (data.num_samples) {
    plan.num_samples = *data.num_samples;
  } else {
    return plan;
  }
  if (plan.num_samples <= 0) {
    throw Error(ErrorKind::usage,
                text("there are ", plan.num_samples, " training samples (nothing to train on): check the data"));
  }
  const auto [least, most] = std::minmax_element(plan.samples_of_rank.begin(), plan.samples_of_rank.end());
  if (plan.is_sharded() && *least != *most) {
    remarks.push_back(text("the ranks have between ", *least, " and ", *most,
                           " samples of their own: all take part in "
                           "as many steps as the longest needs, ranks that are through bring nothing, no sample is "
                           "lost or repeated"));
  }
  return plan;
}

std::int64_t samples_of_ranks(std::int64_t micro_batch, int num_ranks, std::int64_t accumulation) {
  return product(product(micro_batch, num_ranks, "the global batch"), accumulation, "the global batch");
}

}  // namespace

void BatchOrigin::store(AttributeTree& tree) const {
  tree["plan"]["requested_global_batch_size"] = requested_global_batch;
  tree["plan"]["requested_accumulation_steps"] = requested_accumulation;
  tree["provenance"]["reference_global_batch_size"] = reference_global_batch;
  tree["provenance"]["reference_ranks"] = std::int64_t{reference_ranks};
}

BatchOrigin BatchOrigin::from(const AttributeTree& tree) {
  BatchOrigin origin;
  origin.requested_global_batch = attribute<std::int64_t>(tree, "plan", "requested_global_batch_size");
  origin.requested_accumulation = attribute<std::int64_t>(tree, "plan", "requested_accumulation_steps");
  origin.reference_global_batch = attribute<std::int64_t>(tree, "provenance", "reference_global_batch_size");
  origin.reference_ranks = static_cast<int>(attribute<std::int64_t>(tree, "provenance", "reference_ranks"));
  return origin;
}

ResolvedBatch fresh_batch(const PlanOptions& options, const DataShape& data, int num_ranks) {
  check_given(options, num_ranks);
  ResolvedBatch result;
  BatchPlan& plan = result.plan;
  plan = plan_of(options, data, num_ranks, result.remarks);
  const auto& global = options.global_batch_size;
  const auto& micro = options.micro_batch_size;
  const auto& accumulation = options.gradient_accumulation_steps;
  if (global && micro && accumulation && samples_of_ranks(*micro, num_ranks, *accumulation) != *global) {
    throw Error(ErrorKind::usage,
                text(global_flag, " ", *global, " contradicts ", micro_flag, " ", *micro, " x ", num_ranks,
                     " ranks x ", accumulation_flag, " ", *accumulation, " = ",
                     samples_of_ranks(*micro, num_ranks, *accumulation), ": leave one of them out"));
  }
  if (global) {
    plan.global_batch_size = *global;
    const std::int64_t fitting =
        accumulation ? ceil_div(ceil_div(*global, num_ranks), *accumulation) : std::min(usual_micro_batch, *global);
    plan.micro_batch_size = micro.value_or(fitting);
  } else {
    plan.micro_batch_size = micro.value_or(usual_micro_batch);
    plan.global_batch_size = samples_of_ranks(plan.micro_batch_size, num_ranks, accumulation.value_or(1));
  }
  check_batch(plan);
  result.origin = {global.value_or(0), accumulation.value_or(0), plan.global_batch_size, num_ranks};
  return result;
}

ResolvedBatch resumed_batch(const PlanOptions& options, const DataShape& data, int num_ranks, const BatchPlan& stored,
                            const BatchOrigin& origin) {
  check_given(options, num_ranks);
  ResolvedBatch result;
  BatchPlan& plan = result.plan;
  result.origin = origin;
  plan = plan_of(options, data, num_ranks, result.remarks);
  plan.global_batch_size = stored.global_batch_size;
  const std::int64_t asked = options.global_batch_size.value_or(0);
  if (asked != 0 &&
      (asked != origin.requested_global_batch || options.on_rank_change == RankChangePolicy::keep_global_batch)) {
    if (asked != stored.global_batch_size || asked != origin.requested_global_batch) {
      plan.global_batch_size = asked;
      result.origin.requested_global_batch = asked;
      result.origin.reference_global_batch = asked;
      result.origin.reference_ranks = num_ranks;
    }
  } else if (options.on_rank_change == RankChangePolicy::keep_rank_batch && num_ranks != stored.num_ranks) {
    const Int128 twice = static_cast<Int128>(2) * origin.reference_global_batch * num_ranks;
    const Int128 rounded = (twice + origin.reference_ranks) / (static_cast<Int128>(2) * origin.reference_ranks);
    plan.global_batch_size = std::max<std::int64_t>(1, narrow(rounded, "the global batch"));
  }
  if (plan.global_batch_size == stored.global_batch_size && num_ranks != stored.num_ranks &&
      options.on_rank_change == RankChangePolicy::keep_global_batch) {
    result.origin.reference_global_batch = plan.global_batch_size;
    result.origin.reference_ranks = num_ranks;
  }
  const std::int64_t accumulation = options.gradient_accumulation_steps.value_or(0);
  if (options.micro_batch_size) {
    plan.micro_batch_size = *options.micro_batch_size;
  } else if (accumulation != 0 && accumulation != origin.requested_accumulation) {
    plan.micro_batch_size = ceil_div(ceil_div(plan.global_batch_size, num_ranks), accumulation);
  } else {
    plan.micro_batch_size = stored.micro_batch_size;
  }
  if (!options.global_batch_size && accumulation != 0 &&
      samples_of_ranks(plan.micro_batch_size, num_ranks, accumulation) != plan.global_batch_size) {
    result.remarks.push_back(text("the global batch is ", plan.global_batch_size, " as the run defines it, and not ",
                                  micro_flag, " ", plan.micro_batch_size, " x ", num_ranks, " ranks x ",
                                  accumulation_flag, " ", accumulation, " = ",
                                  samples_of_ranks(plan.micro_batch_size, num_ranks, accumulation),
                                  ": a rank now accumulates up to ", plan.accumulation_steps(), " micro-batches"));
  }
  if (accumulation != 0) result.origin.requested_accumulation = accumulation;
  return result;
}

void check_batch(const BatchPlan& plan) {
  if (plan.is_sharded() && plan.global_batch_size % plan.num_ranks != 0) {
    throw Error(ErrorKind::usage,
                text("a global batch of ", plan.global_batch_size, " samples cannot be taken in equal parts from ",
                     plan.num_ranks, " ranks (each rank has its own data): make ", global_flag, " a multiple of ",
                     plan.num_ranks));
  }
  if (plan.has_length() && plan.steps_per_epoch() == 0) {
    throw Error(ErrorKind::usage,
                text("an epoch has no step: ", plan.num_samples, " samples on ", plan.num_ranks,
                     " ranks are fewer than one global batch of ", plan.global_batch_size, " (micro-batch ",
                     plan.micro_batch_size, "), and --drop-last leaves the rest out: lower ", global_flag,
                     " or do without --drop-last"));
  }
}

}  // namespace lockstep
