#pragma once

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/loss_scaler.hpp"
#include "runtime/plan/training_plan.hpp"
#include "runtime/train/loss.hpp"
#include "runtime/train/precision.hpp"
#include "runtime/train/sharded_optimizer.hpp"
#include "runtime/train/state_snapshot.hpp"
#include "runtime/train/step_runner.hpp"

namespace lockstep {

/// What happens to a step whose fp16 gradients overflow: computed again at a lower loss scale, or dropped.
enum class OverflowPolicy { retry, skip };

/// What happens to a step whose fp32 or bf16 gradients are not finite.
enum class NonfinitePolicy { error, skip };

struct TrainerOptions {
  PlanOptions plan;
  OptimizerOptions optimizer;
  std::vector<ParameterGroup> parameter_groups;
  Precision precision = Precision::fp32;
  LossScalerOptions loss_scaler;  ///< used with fp16
  double max_grad_norm = 0.0;     ///< global norm that gradients are clipped to; 0: not clipped
  std::int64_t bucket_bytes = std::int64_t{25}
                              << 20;  ///< gradients travel in pieces of this, where transfers overlap
  OverflowPolicy on_overflow = OverflowPolicy::retry;
  NonfinitePolicy on_nonfinite = NonfinitePolicy::error;
  std::int64_t max_nonfinite = 3;               ///< steps in a row that NonfinitePolicy::skip may drop
  std::int64_t evaluation_batch_size = 0;       ///< samples of a forward pass of an evaluation; 0: the micro-batch's
  std::set<std::int64_t> overflow_drill_steps;  ///< steps, from 0, whose first attempt is made to overflow (a drill)
  DeviceGraphMaker make_graph;      ///< full micro-batches run as one graph of the device; absent: kernel by kernel
  AttributeGroup resolved_options;  ///< stored as they are, for people
};

/// A step that is over.
struct StepReport {
  StepPlan plan;
  double loss = 0.0;           ///< mean of the step
  double gradient_norm = 0.0;  ///< unscaled, before clipping
  double loss_scale = 1.0;     ///< that the step was computed with
  std::int64_t attempts = 1;
  bool applied = true;
  double seconds = 0.0;
};

/// What a run tells while it runs; empty functions are not called. Called on every rank.
struct TrainerEvents {
  std::function<void(const StepReport&)> on_step;
  std::function<void(const std::map<std::string, double>&)> on_evaluation;
  std::function<void(const std::string&)> on_message;  ///< one line a human should see (an overflow, a save)
};

/// How far run() goes, and what it does on the way.
struct RunControl {
  std::optional<std::int64_t> stop_after_steps;  ///< steps of this launch; the plan does not change
  std::int64_t save_steps = 0;                   ///< a checkpoint every so many steps; 0: not by steps
  double save_interval_seconds = 0.0;            ///< ... or when so many seconds have gone (rank 0's clock)
  bool save_at_epoch_end = false;
  const Dataset* evaluation_data = nullptr;      ///< evaluated at the end of every epoch and of the run
  MetricFunction metrics;                        ///< absent: the loss
  std::int64_t evaluation_steps = 0;             ///< also every so many steps
  std::function<bool()> stop_requested;          ///< polled at step boundaries; any rank's yes stops all
  std::function<bool()> save_requested;          ///< polled too
  std::function<void(double seconds)> on_saved;  ///< how long a save took from its start until it was a checkpoint
  TrainerEvents events;
};

enum class RunOutcome { finished, stopped, paused };  ///< all steps taken; on request; after stop_after_steps

/// What the trainer knows of a call of run() while it goes on.
struct RunUnderWay {
  CheckpointStore* store = nullptr;  ///< it may still be copying the state
  const TrainerEvents* events = nullptr;
};

/// Trains a module on the ranks of a communicator: the same bits on any number of them.
///
/// All calls are **collective**. The library never exits or aborts: an exception in one rank's micro-batch is carried
/// through the step's collective and thrown on all ranks. The module's parameters belong to the trainer while it
/// lives (see FlatState). Module, data, communicator and reader must outlive it.
class Trainer {
 public:
  /// `loss` is the forward pass and captures the model. With `resume_from` the run goes on from that checkpoint,
  /// under today's options and ranks, by the rules of resuming.
  Trainer(torch::nn::Module& module, LossFunction loss, const Dataset& data, TrainerOptions options,
          Communicator& communicator, CheckpointReader* resume_from = nullptr);
  ~Trainer();

  const TrainingPlan& plan() const { return plan_; }
  const LossScaler& loss_scaler() const { return scaler_; }

  /// What a resume should tell: the machine or the library differ from the stored ones, so bits may.
  const std::vector<std::string>& resume_notes() const { return resume_notes_; }

  /// Takes one step. Requires !plan().finished(). Waits for the numbers of its report; run() launches the next step
  /// before it does, where a device has work to do meanwhile and nothing wants the state between the two.
  StepReport take_step(const StepFlags& mine, const TrainerEvents& events);
  StepReport take_step() { return take_step({}, {}); }

  /// Each sample counts once, on any number of ranks; the model is put back into training mode. Empty when a stop was
  /// requested on any rank meanwhile.
  std::map<std::string, double> evaluate(const Dataset& data, const MetricFunction& metrics,
                                         const std::function<bool()>& stop_requested = {});

  /// The state between two steps; see Snapshot for how long it is valid. run() alone waits by itself for what a store
  /// still has to copy: whoever saves without it calls the store's wait_until_copied() before the next step.
  Snapshot snapshot();

  /// Steps, evaluations and saves until the plan's end, a stop, or `control.stop_after_steps`. Saves to `store` (may
  /// be null) at the end and at a stop, too, and tries again where that fails; throws Error when it fails again.
  RunOutcome run(const RunControl& control, CheckpointStore* store);

 private:
  using AskFlags = std::function<StepFlags()>;
  /// Whether the step after the one that was launched may be launched before the host has seen its numbers.
  using MayRunAhead =
      std::function<bool(const StepPlan& launched, const StepFlags& agreed, const TrainingPlan& after)>;

  StepReport take_step(const AskFlags& ask, const TrainerEvents& events, const MayRunAhead& may_run_ahead);
  StepAttempt attempt(const TrainingPlan& plan, double loss_scale, std::int64_t number, const StepFlags& mine,
                      const TrainerEvents& events);
  void run_ahead(const StepAttempt& current, const AskFlags& ask, const TrainerEvents& events,
                 const MayRunAhead& may_run_ahead);
  void settle_step_ahead();
  bool recover_from_nonfinite(const StepAttempt& failed, const TrainerEvents& events);
  void let_state_change() const;
  void wait_until_copied() const;
  void save(CheckpointStore& store, const RunControl& control);
  void tell_saved(const CheckpointStore& store, const RunControl& control);
  void save_at_end(CheckpointStore& store, const RunControl& control);

  torch::nn::Module& module_;
  LossFunction loss_;
  TrainerOptions options_;
  Communicator& communicator_;
  TrainingPlan plan_;
  LossScaler scaler_;
  FlatState state_;
  ShardedOptimizer optimizer_;
  HostSlices host_slices_;
  StepRunner steps_;
  std::vector<std::string> resume_notes_;
  StepFlags agreed_;                                         ///< of the newest step
  std::optional<StepAttempt> ahead_;                         ///< of the next step, launched already
  std::optional<Error> failure_ahead_;                       ///< what launching it threw
  std::optional<std::pair<StepReport, StepFlags>> settled_;  ///< a step that was taken and not yet told
  std::chrono::steady_clock::time_point last_end_;           ///< of a step
  std::int64_t nonfinite_in_a_row_ = 0;
  std::int64_t saved_step_ = -1;
  std::optional<std::chrono::steady_clock::time_point> save_start_;  ///< of the save under way
  RunUnderWay under_way_;
};

}  // namespace lockstep
