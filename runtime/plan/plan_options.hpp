#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// How an epoch's order is made; stored with the run.
enum class ShuffleKind { permutation, sequential };

enum class ScheduleKind {
  constant,
  constant_with_warmup,
  linear,
  cosine,
  cosine_with_restarts,
  cosine_with_min_lr,
  polynomial,
  inverse_sqrt,
  warmup_stable_decay,
  one_cycle,
  step,
  multi_step,
  exponential,
  piecewise_constant,
  reduce_on_plateau,
  custom
};

/// What a resume on another number of ranks keeps.
enum class RankChangePolicy { keep_global_batch, keep_rank_batch };

/// How the base rate follows a changed global batch.
enum class LrScaling { none, linear, sqrt };

/// Whose schedule counts when a resume's options differ from the stored ones.
enum class ScheduleFrom { must_agree, checkpoint, command_line };

/// The schedule that the user asked for. Decimals are kept as written, so that 0.07 x 100 is 7.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::linear;
  double learning_rate = 1e-3;  ///< base rate
  std::optional<std::int64_t> warmup_steps;
  std::optional<std::int64_t> warmup_samples;
  std::optional<std::string> warmup_ratio;  ///< decimal text, of the total steps
  std::optional<double> num_cycles;         ///< waves of cosine (0.5: one half-cycle), cycles of restarts
  std::optional<double> min_lr;
  double power = 1.0;                       ///< polynomial
  double lr_end = 1e-7;                     ///< polynomial
  std::optional<std::int64_t> timescale;    ///< inverse-sqrt
  std::optional<std::int64_t> decay_steps;  ///< warmup-stable-decay
  std::optional<std::int64_t> step_size;    ///< step
  std::vector<std::int64_t> milestones;     ///< multi-step, piecewise-constant
  std::vector<double> factors;              ///< piecewise-constant: one more than milestones
  double gamma = 0.1;                       ///< step, multi-step, exponential
  double plateau_factor = 0.1;
  std::int64_t plateau_patience = 10;
  double plateau_threshold = 1e-4;
  std::int64_t plateau_cooldown = 0;
  std::function<double(double position, double total)> custom;  ///< factor of the base rate; kind == custom
};

/// Length of a run when no option says one.
inline constexpr const char* kDefaultNumTrainEpochs = "3";

/// What the user asked for, before it is resolved against the data and the ranks.
struct PlanOptions {
  std::optional<std::int64_t> global_batch_size;
  std::optional<std::int64_t> micro_batch_size;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::optional<std::string> num_train_epochs;  ///< decimal text: "6", "2.5"
  std::optional<std::int64_t> max_steps;
  std::optional<std::int64_t> train_samples;
  bool drop_last = false;
  std::uint64_t seed = 0;  ///< below 2^63
  ShuffleKind shuffle = ShuffleKind::permutation;
  ScheduleOptions schedule;
  RankChangePolicy on_rank_change = RankChangePolicy::keep_global_batch;
  LrScaling lr_scaling = LrScaling::none;
  ScheduleFrom schedule_from = ScheduleFrom::must_agree;
};

/// What there is to train on. Exactly one of the two is set, or none for a stream without a length.
struct DataShape {
  std::optional<std::int64_t> num_samples;    ///< one data set that all ranks can read
  std::vector<std::int64_t> samples_of_rank;  ///< data that shards itself: each rank has its own
};

}  // namespace lockstep
