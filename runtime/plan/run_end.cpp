#include "runtime/plan/run_end.hpp"

#include <algorithm>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

constexpr std::string_view epochs_flag = "--num-train-epochs";
constexpr std::string_view samples_flag = "--train-samples";
constexpr std::string_view steps_flag = "--max-steps";

std::string_view flag_of(RunEndKind kind) {
  switch (kind) {
    case RunEndKind::epochs:
      return epochs_flag;
    case RunEndKind::samples:
      return samples_flag;
    case RunEndKind::steps:
      break;
  }
  return steps_flag;
}

void require_positive(const std::optional<std::int64_t>& value, std::string_view flag) {
  if (value && *value <= 0) {
    throw Error(ErrorKind::usage, text(flag, " is ", *value, " (a run needs at least one): give a positive number"));
  }
}

/// The position after `steps` steps from the start of an epoch; the next epoch's start when nothing is left.
void place_after_steps(RunEnd& end, const BatchPlan& batch, std::int64_t steps) {
  const std::int64_t per_epoch = batch.steps_per_epoch();
  end.epoch += steps / per_epoch;
  end.sample = batch.position_after(steps % per_epoch);
}

}  // namespace

std::string RunEnd::description() const { return text(flag_of(kind), " ", requested); }

bool RunEnd::same_request(const RunEnd& other) const {
  if (kind != other.kind) return false;
  return Decimal(requested, flag_of(kind)) == Decimal(other.requested, flag_of(kind));
}

RunEnd resolve_run_end(const PlanOptions& options, const BatchPlan& batch, const Progress& from) {
  require_positive(options.max_steps, steps_flag);
  require_positive(options.train_samples, samples_flag);
  if (options.train_samples && (options.max_steps || options.num_train_epochs)) {
    throw Error(ErrorKind::usage, text(samples_flag, " ", *options.train_samples, " and ",
                                       options.max_steps ? text(steps_flag, " ", *options.max_steps)
                                                         : text(epochs_flag, " ", *options.num_train_epochs),
                                       " both say where the run ends (they may disagree): give one of them"));
  }
  RunEnd end;
  if (options.max_steps) {
    end.kind = RunEndKind::steps;
    end.steps = *options.max_steps;
    end.requested = text(end.steps);
    return end;
  }
  if (!batch.has_length()) {
    throw Error(
        ErrorKind::usage,
        text("the length of the training data is not known (a stream has no epochs to count): give ", steps_flag));
  }
  if (options.train_samples) {
    end.kind = RunEndKind::samples;
    end.requested = text(*options.train_samples);
    const std::int64_t left = *options.train_samples - from.consumed_samples + from.sample_in_epoch;
    end.epoch = from.epoch + left / batch.used_samples();
    end.sample = left % batch.used_samples();
    return end;
  }
  end.requested = options.num_train_epochs.value_or(kDefaultNumTrainEpochs);
  const Decimal epochs(end.requested, epochs_flag);
  if (epochs.is_zero()) {
    throw Error(ErrorKind::usage, text(epochs_flag, " is ", end.requested,
                                       " (a run needs at least one step): give a "
                                       "positive number"));
  }
  end.epoch = epochs.floor();
  place_after_steps(end, batch, epochs.ceil_fraction_times(batch.steps_per_epoch()));
  return end;
}

std::int64_t steps_left(const RunEnd& end, const BatchPlan& batch, const Progress& progress) {
  if (!end.is_point()) return std::max<std::int64_t>(0, end.steps - progress.steps_taken);
  if (progress.epoch > end.epoch) return 0;
  if (progress.epoch == end.epoch) return batch.steps_between(progress.sample_in_epoch, end.sample);
  const std::int64_t whole = product(end.epoch - progress.epoch - 1, batch.steps_per_epoch(), "the number of steps");
  return narrow(static_cast<Int128>(whole) + batch.steps_between(progress.sample_in_epoch, batch.num_samples) +
                    batch.steps_between(0, end.sample),
                "the number of steps");
}

std::int64_t samples_left(const RunEnd& end, const BatchPlan& batch, const Progress& progress) {
  if (progress.epoch > end.epoch) return 0;
  if (progress.epoch == end.epoch) return batch.samples_between(progress.sample_in_epoch, end.sample);
  const std::int64_t whole = product(end.epoch - progress.epoch - 1, batch.used_samples(), "the number of samples");
  return narrow(static_cast<Int128>(whole) + batch.samples_between(progress.sample_in_epoch, batch.num_samples) +
                    batch.samples_between(0, end.sample),
                "the number of samples");
}

std::int64_t samples_of_next_step(const RunEnd& end, const BatchPlan& batch, const Progress& progress) {
  const std::int64_t samples = batch.samples_of_step(progress.sample_in_epoch);
  if (!end.is_point() || progress.epoch != end.epoch || batch.is_sharded()) return samples;
  return std::min(samples, end.sample - progress.sample_in_epoch);
}

}  // namespace lockstep
