#include "runtime/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/train/evaluation.hpp"
#include "runtime/train/numerics.hpp"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// How many samples each rank has of its own; empty for data that all ranks share.
std::vector<std::int64_t> samples_of_ranks(const Dataset& data, Communicator& communicator) {
  std::vector<std::int64_t> samples;
  if (data.sharding() == DataSharding::shared) return samples;
  for (const std::string& of_rank : gather_texts(communicator, std::to_string(data.num_samples())))
    samples.push_back(std::stoll(of_rank));
  return samples;
}

TrainingPlan plan_for(const TrainerOptions& options, const Dataset& data, Communicator& communicator,
                      const CheckpointReader* resume_from) {
  DataShape shape;
  shape.samples_of_rank = samples_of_ranks(data, communicator);
  if (shape.samples_of_rank.empty()) shape.num_samples = data.num_samples();
  return resume_from ? TrainingPlan::resumed(options.plan, shape, communicator.num_ranks(), resume_from->attributes())
                     : TrainingPlan::fresh(options.plan, shape, communicator.num_ranks());
}

std::int64_t first_id_of(const BatchPlan& plan, int rank) {
  return plan.is_sharded()
             ? std::accumulate(plan.samples_of_rank.begin(), plan.samples_of_rank.begin() + rank, std::int64_t{0})
             : 0;
}

LossScaler scaler_for(TrainerOptions& options, const CheckpointReader* resume_from) {
  options.loss_scaler.enabled = options.precision == Precision::fp16;
  return resume_from ? LossScaler::resumed(options.loss_scaler, resume_from->attributes())
                     : LossScaler(options.loss_scaler);
}

/// Gradient buffers that the busiest rank needs, in a full step and in any shorter one.
int slots_for(const BatchPlan& plan) {
  int slots = 1;
  const auto consider = [&](std::int64_t leaves, LeafRange share) {
    slots = std::max(slots, TreeAccumulator::num_slots(leaves, share));
  };
  const std::int64_t of_rank = plan.accumulation_steps();
  const std::int64_t most =
      plan.is_sharded() ? of_rank * plan.num_ranks : plan.num_micro_batches(plan.global_batch_size);
  for (std::int64_t leaves = 1; leaves <= most; ++leaves) {
    if (plan.is_sharded())  // a rank's share may begin anywhere: those before it may have run out
      for (std::int64_t begin = 0; begin < leaves; ++begin)
        consider(leaves, {begin, std::min(begin + of_rank, leaves)});
    else
      for (int rank = 0; rank < plan.num_ranks; ++rank) consider(leaves, share_of(leaves, plan.num_ranks, rank));
  }
  return slots;
}

// What follows a step, by where the plan stands after it.

bool is_epoch_over(const StepPlan& done, const TrainingPlan& after) {
  return after.progress().epoch != done.epoch || after.finished();
}

bool is_evaluation_due(const RunControl& control, const StepPlan& done, const TrainingPlan& after) {
  return control.evaluation_data &&
         (is_epoch_over(done, after) ||
          (control.evaluation_steps > 0 && after.progress().steps_taken % control.evaluation_steps == 0));
}

bool is_save_due(const RunControl& control, const StepFlags& agreed, const StepPlan& done,
                 const TrainingPlan& after) {
  return agreed.save || (control.save_steps > 0 && after.progress().steps_taken % control.save_steps == 0) ||
         (control.save_at_epoch_end && is_epoch_over(done, after));
}

bool asked(const std::function<bool()>& question) { return question && question(); }

/// Makes a run the one under way; when it ends, in whatever way, nothing of the state is read any more.
class RunGuard {
 public:
  RunGuard(RunUnderWay& place, const RunUnderWay& run) : place_(place) { place_ = run; }
  ~RunGuard() {
    if (place_.store) place_.store->wait_until_copied();
    place_ = {};
  }
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;

 private:
  RunUnderWay& place_;
};

void tell(const TrainerEvents& events, const std::string& message) {
  if (events.on_message) events.on_message(message);
}

}  // namespace

Trainer::Trainer(torch::nn::Module& module, LossFunction loss, const Dataset& data, TrainerOptions options,
                 Communicator& communicator, CheckpointReader* resume_from)
    : module_(module),
      loss_(std::move(loss)),
      options_(std::move(options)),
      communicator_(communicator),
      plan_(plan_for(options_, data, communicator, resume_from)),
      scaler_(scaler_for(options_, resume_from)),
      state_(module, communicator, slots_for(plan_.batch())),
      optimizer_(state_, options_.optimizer, options_.parameter_groups),
      host_slices_(state_, optimizer_),
      steps_(module, loss_, data, state_, optimizer_, communicator,
             {{options_.plan.seed, options_.precision, first_id_of(plan_.batch(), communicator.rank())},
              options_.max_grad_norm,
              options_.bucket_bytes,
              options_.overflow_drill_steps},
             plan_.batch().accumulation_steps(), options_.make_graph) {
  if (!resume_from) return;
  restore_state(*resume_from, state_, optimizer_, host_slices_, communicator_);
  saved_step_ = plan_.progress().steps_taken;
  if (has_attribute(resume_from->attributes(), "optimizer", "nonfinite_in_a_row"))
    nonfinite_in_a_row_ = attribute<std::int64_t>(resume_from->attributes(), "optimizer", "nonfinite_in_a_row");
  resume_notes_ = numerics_notes(resume_from->attributes(), numerics_of(options_.precision, state_.device()));
}

Trainer::~Trainer() = default;

StepReport Trainer::take_step(const StepFlags& mine, const TrainerEvents& events) {
  return take_step([&] { return mine; }, events, {});
}

StepReport Trainer::take_step(const AskFlags& ask, const TrainerEvents& events, const MayRunAhead& may_run_ahead) {
  if (settled_) {
    const auto [report, flags] = *std::exchange(settled_, std::nullopt);
    agreed_ = flags;
    return report;
  }
  if (failure_ahead_) throw *std::exchange(failure_ahead_, std::nullopt);
  const GeneratorGuard generator(state_.device());
  StepAttempt current =
      ahead_ ? *std::exchange(ahead_, std::nullopt) : attempt(plan_, scaler_.scale(), 1, ask(), events);
  for (;;) {
    if (may_run_ahead && steps_.overlaps()) run_ahead(current, ask, events, may_run_ahead);
    steps_.settle(current);
    agreed_ = current.totals.flags;
    if (current.totals.finite) {
      scaler_.update(false);
      nonfinite_in_a_row_ = 0;
      break;
    }
    steps_.take_back(current, std::exchange(ahead_, std::nullopt));
    failure_ahead_.reset();
    if (!recover_from_nonfinite(current, events)) break;
    current = attempt(plan_, scaler_.scale(), current.number + 1, current.mine, events);
  }
  StepReport report;
  report.plan = current.step;
  report.loss = current.totals.loss;
  report.gradient_norm = current.totals.gradient_norm;
  report.loss_scale = current.loss_scale;
  report.attempts = current.number;
  report.applied = current.totals.finite;
  plan_.complete_step(report.applied, report.attempts, current.totals.sample_mark);
  report.seconds = seconds_since(std::max(current.start, last_end_));
  last_end_ = Clock::now();
  return report;
}

StepAttempt Trainer::attempt(const TrainingPlan& plan, double loss_scale, std::int64_t number, const StepFlags& mine,
                             const TrainerEvents& events) {
  StepAttempt attempt = steps_.attempt(plan, loss_scale, number, mine, [this] { let_state_change(); });
  if (const auto note = steps_.take_note()) tell(events, *note);
  return attempt;
}

void Trainer::run_ahead(const StepAttempt& current, const AskFlags& ask, const TrainerEvents& events,
                        const MayRunAhead& may_run_ahead) {
  // As things are when nothing overflows; else what is launched here changes nothing, and is launched again.
  TrainingPlan after = plan_;
  after.complete_step(/*applied=*/true, current.number, current.totals.sample_mark);
  if (after.finished() || !may_run_ahead(current.step, current.totals.flags, after)) return;
  LossScaler scaler = scaler_;
  scaler.update(false);
  try {
    ahead_ = attempt(after, scaler.scale(), 1, ask(), events);
  } catch (const Error& error) {
    failure_ahead_ = error;
  }
}

void Trainer::settle_step_ahead() {
  if (!ahead_) return;
  const StepReport report = take_step({}, under_way_.events ? *under_way_.events : TrainerEvents{});
  settled_.emplace(report, agreed_);
}

bool Trainer::recover_from_nonfinite(const StepAttempt& failed, const TrainerEvents& events) {
  const StepPlan& step = failed.step;
  const StepTotals& totals = failed.totals;
  const std::string where = steps_.culprit_text(plan_, failed);
  const auto fail = [&](const std::string& why, const std::string& next) {
    throw Error(ErrorKind::do_not_requeue,
                text("step ", step.step + 1, ": the gradients are not finite (", where, "; loss ", totals.loss, "; ",
                     why, "): ", next, ". The newest checkpoint is as it was"));
  };
  if (scaler_.options().enabled) {
    const bool retry = options_.on_overflow == OverflowPolicy::retry;
    if (retry && !totals.loss_finite)
      fail("the loss itself is not finite, which no loss scale cures",
           "look at the data of this step and lower the learning rate");
    if (scaler_.at_minimum())
      fail(text("the loss scale is at its minimum, ", scaler_.scale()),
           "lower the learning rate, or use --precision bf16 or fp32");
    const double before = scaler_.scale();
    scaler_.update(true);
    tell(events, text("step ", step.step + 1, ": overflow at loss scale ", before, " (", where, "); scale ", before,
                      " -> ", scaler_.scale(), retry ? ", computing the step again" : ", the update is dropped"));
    return retry;
  }
  if (options_.on_nonfinite == NonfinitePolicy::error)
    fail(text("--on-nonfinite is error, precision ", name_of(options_.precision)),
         "look at the data of this step, lower the learning rate, or drop such steps with --on-nonfinite skip");
  if (++nonfinite_in_a_row_ > options_.max_nonfinite)
    fail(text(nonfinite_in_a_row_, " steps in a row, --max-nonfinite is ", options_.max_nonfinite),
         "the model has diverged: go back to an older checkpoint with a lower learning rate");
  tell(events, text("step ", step.step + 1, ": gradients not finite (", where,
                    "); the update is dropped, the schedule holds"));
  return false;
}

std::map<std::string, double> Trainer::evaluate(const Dataset& data, const MetricFunction& metrics,
                                                const std::function<bool()>& stop_requested) {
  settle_step_ahead();
  communicator_.wait_for_device();
  state_.restore_buffers();
  const std::int64_t batch_size =
      options_.evaluation_batch_size > 0 ? options_.evaluation_batch_size : plan_.batch().micro_batch_size;
  return evaluate_model(module_, data, metrics ? metrics : metric_of(loss_), {options_.precision, batch_size},
                        communicator_, stop_requested);
}

void Trainer::let_state_change() const {
  if (host_slices_.are_copies())
    host_slices_.put_changes_after_fetch();
  else
    wait_until_copied();
}

void Trainer::wait_until_copied() const {
  if (under_way_.store) under_way_.store->wait_until_copied();
}

Snapshot Trainer::snapshot() {
  settle_step_ahead();
  communicator_.wait_for_device();
  wait_until_copied();  // the host's copy of a device's state is filled anew
  Snapshot snapshot;
  snapshot.step = plan_.progress().steps_taken;
  plan_.store(snapshot.attributes);
  snapshot.attributes["loss_scaler"] = scaler_.to_attributes();
  snapshot.attributes["optimizer"] = optimizer_.to_attributes();
  store_updates(state_, plan_.progress().steps_applied, snapshot.attributes["optimizer"]);
  snapshot.attributes["optimizer"]["nonfinite_in_a_row"] = nonfinite_in_a_row_;
  snapshot.attributes["numerics"] = numerics_of(options_.precision, state_.device());
  if (!options_.resolved_options.empty()) snapshot.attributes["options"] = options_.resolved_options;
  host_slices_.start_fetch();
  std::vector<at::Tensor> kept;  // a step puts others in their place, the snapshot still shows these
  for (const LooseTensor& item : state_.loose()) kept.push_back(item.committed);
  snapshot.wait_for_bytes = [fetched = host_slices_.wait_for_fetch(), kept = std::move(kept)] { fetched(); };
  snapshot.tensors = state_parts(state_, optimizer_, host_slices_, communicator_);
  snapshot.aliases = state_aliases(state_);
  return snapshot;
}

void Trainer::save(CheckpointStore& store, const RunControl& control) {
  if (saved_step_ == plan_.progress().steps_taken) return;
  save_start_ = Clock::now();
  store.start_save(snapshot());
  saved_step_ = plan_.progress().steps_taken;
  tell_saved(store, control);
}

void Trainer::tell_saved(const CheckpointStore& store, const RunControl& control) {
  if (!save_start_ || store.is_saving()) return;
  if (control.on_saved) control.on_saved(seconds_since(*save_start_));
  save_start_.reset();
}

void Trainer::save_at_end(CheckpointStore& store, const RunControl& control) {
  constexpr int num_attempts = 2;  // on a disk that was full there may be room again
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    save(store, control);
    const bool is_saved = store.finish();
    tell_saved(store, control);
    if (is_saved) return;
    saved_step_ = -1;
  }
  throw Error(ErrorKind::failed,
              text("the run ends with step ", plan_.progress().steps_taken,
                   ", but its last checkpoint could not be saved, for the reason given above: mend that and start "
                   "again; the run goes on from the newest checkpoint there is"));
}

RunOutcome Trainer::run(const RunControl& control, CheckpointStore* store) {
  module_.train();
  const RunGuard guard(under_way_, {store, &control.events});
  if (store && !plan_.finished()) store->prepare(snapshot());
  RunOutcome end = RunOutcome::finished;
  Clock::time_point last_save = Clock::now();
  for (std::int64_t taken = 0; settled_ || !plan_.finished(); ++taken) {
    if (control.stop_after_steps && taken >= *control.stop_after_steps) {
      end = RunOutcome::paused;
      break;
    }
    const auto ask = [&] {
      const bool interval_over = control.save_interval_seconds > 0.0 && communicator_.rank() == 0 &&
                                 seconds_since(last_save) >= control.save_interval_seconds;
      return StepFlags{asked(control.stop_requested), asked(control.save_requested) || interval_over,
                       store != nullptr && store->part_is_durable()};
    };
    const auto may_run_ahead = [&](const StepPlan& launched, const StepFlags& agreed, const TrainingPlan& after) {
      const bool is_last = control.stop_after_steps && taken + 1 >= *control.stop_after_steps;
      return !is_last && !agreed.stop && !agreed.save_durable && !is_evaluation_due(control, launched, after) &&
             !is_save_due(control, agreed, launched, after);
    };
    const StepReport report = take_step(ask, control.events, may_run_ahead);
    if (control.events.on_step) control.events.on_step(report);
    if (store && agreed_.save_durable) {
      store->commit_save();
      tell_saved(*store, control);
    }

    bool stop = agreed_.stop;
    if (is_evaluation_due(control, report.plan, plan_) && !stop) {
      const auto results = evaluate(*control.evaluation_data, control.metrics, control.stop_requested);
      stop = results.empty();
      if (const auto loss = results.find("loss"); loss != results.end()) plan_.observe_metric(loss->second);
      if (!results.empty() && control.events.on_evaluation) control.events.on_evaluation(results);
    }
    if (store && is_save_due(control, agreed_, report.plan, plan_)) {
      save(*store, control);
      last_save = Clock::now();
    }
    if (stop && !plan_.finished()) {
      end = RunOutcome::stopped;
      break;
    }
  }
  if (store) save_at_end(*store, control);
  communicator_.wait_for_device();
  return end;
}

}  // namespace lockstep
