#include "runtime/train/trainer.hpp"

#include <ATen/core/grad_mode.h>

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

/// Whether any transfer gains from starting before the backward pass is over.
bool overlaps(const FlatState& state) {
  return std::any_of(state.groups().begin(), state.groups().end(),
                     [](const FlatGroup& group) { return group.exchange->overlaps(); });
}

bool asked(const std::function<bool()>& question) { return question && question(); }

/// Makes a store the one that a run saves to; when the run ends, in whatever way, nothing of the state is read any
/// more.
class StoreOfRun {
 public:
  StoreOfRun(CheckpointStore*& place, CheckpointStore* store) : place_(place) { place_ = store; }
  ~StoreOfRun() {
    if (place_) place_->wait_until_copied();
    place_ = nullptr;
  }
  StoreOfRun(const StoreOfRun&) = delete;
  StoreOfRun& operator=(const StoreOfRun&) = delete;

 private:
  CheckpointStore*& place_;
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
      reads_ahead_(overlaps(state_)),
      buckets_(state_, reads_ahead_ ? options_.bucket_bytes : 0),
      optimizer_(state_, options_.optimizer, options_.parameter_groups),
      host_slices_(state_, optimizer_),
      micro_batches_(module, loss_, data, state_, buckets_,
                     {options_.plan.seed, options_.precision, first_id_of(plan_.batch(), communicator.rank())},
                     options_.make_graph),
      exchange_(state_, buckets_, communicator) {
  if (!resume_from) return;
  restore_state(*resume_from, state_, optimizer_, host_slices_, communicator_);
  saved_step_ = plan_.progress().steps_taken;
  if (has_attribute(resume_from->attributes(), "optimizer", "nonfinite_in_a_row"))
    nonfinite_in_a_row_ = attribute<std::int64_t>(resume_from->attributes(), "optimizer", "nonfinite_in_a_row");
  resume_notes_ = numerics_notes(resume_from->attributes(), numerics_of(options_.precision, state_.device()));
}

Trainer::~Trainer() = default;

StepReport Trainer::take_step(const StepFlags& mine, const TrainerEvents& events) {
  const GeneratorGuard generator(state_.device());
  const Clock::time_point start = Clock::now();
  StepReport report;
  report.plan = plan_.next_step();
  const StepPlan& step = report.plan;
  const StepShare share = plan_.batch().share_at(step.first_sample, step.num_samples, communicator_.rank());
  for (report.attempts = 1;; ++report.attempts) {
    const bool drill = report.attempts == 1 && options_.overflow_drill_steps.count(step.step) != 0;
    const double scale = scaler_.scale();
    exchange_.begin(plan_.batch(), step);
    const MicroBatchSums sums = micro_batches_.run(plan_, step, share, scale, drill,
                                                   [this](const Bucket& bucket) { exchange_.start(bucket); });
    if (const auto note = micro_batches_.take_note()) tell(events, *note);
    read_ahead();
    const StepTotals totals = exchange_.reduce(sums, scale, mine);
    agreed_ = totals.flags;
    report.loss = totals.loss;
    report.gradient_norm = totals.gradient_norm;
    report.loss_scale = scale;
    report.applied = totals.finite;
    if (totals.finite) {
      apply(totals, step.learning_rate);
      scaler_.update(false);
      nonfinite_in_a_row_ = 0;
    } else if (recover_from_nonfinite(step, totals, share, drill, events)) {
      continue;
    }
    plan_.complete_step(totals.finite, report.attempts, totals.sample_mark);
    report.seconds = seconds_since(start);
    return report;
  }
}

void Trainer::read_ahead() {
  if (!reads_ahead_) return;
  if (const std::optional<StepPlan> next = plan_.step_after_next())
    micro_batches_.read_ahead(plan_, *next,
                              plan_.batch().share_at(next->first_sample, next->num_samples, communicator_.rank()));
}

void Trainer::apply(const StepTotals& totals, double learning_rate) {
  const at::NoGradGuard no_grad;
  wait_until_copied();
  double factor = totals.gradient_factor;
  // As torch.nn.utils.clip_grad_norm_.
  if (options_.max_grad_norm > 0.0) factor *= std::min(1.0, options_.max_grad_norm / (totals.gradient_norm + 1e-6));
  for (std::size_t g = 0; g < state_.groups().size(); ++g) {
    FlatGroup& group = state_.groups()[g];
    const std::int64_t num_parameters = group.parameter_slice().size();
    at::Tensor& sums = exchange_.slices()[g];
    if (factor != 1.0) sums.narrow(0, 0, num_parameters).mul_(factor);
    const std::int64_t num_buffers = sums.numel() - num_parameters;
    if (num_buffers > 0)
      group.own_weights.narrow(0, num_parameters, num_buffers)
          .add_(sums.narrow(0, num_parameters, num_buffers), totals.buffer_factor);
  }
  optimizer_.step(exchange_.slices(), learning_rate);
  state_.publish(totals.counter_counts);
}

std::string Trainer::culprit_text(const StepPlan& step, const StepShare& share, bool drill) {
  std::string mine;
  agree(communicator_, [&] {
    if (const auto found = micro_batches_.first_nonfinite(plan_, step, share, scaler_.scale(), drill))
      mine = text("micro-batch ", found->micro_batch, ", ", found->tensor);
  });
  state_.restore_buffers();
  // Shares are dealt in order of the ranks, so the first rank that found one has the first micro-batch.
  for (const std::string& of_rank : gather_texts(communicator_, mine))
    if (!of_rank.empty()) return "first in " + of_rank;
  return "only in the sum over the micro-batches";
}

bool Trainer::recover_from_nonfinite(const StepPlan& step, const StepTotals& totals, const StepShare& share,
                                     bool drill, const TrainerEvents& events) {
  const std::string where = culprit_text(step, share, drill);
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
  communicator_.wait_for_device();
  state_.restore_buffers();
  const std::int64_t batch_size =
      options_.evaluation_batch_size > 0 ? options_.evaluation_batch_size : plan_.batch().micro_batch_size;
  return evaluate_model(module_, data, metrics ? metrics : metric_of(loss_), {options_.precision, batch_size},
                        communicator_, stop_requested);
}

void Trainer::wait_until_copied() const {
  if (store_) store_->wait_until_copied();
}

Snapshot Trainer::snapshot() {
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
  host_slices_.fetch();
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
  const StoreOfRun store_of_run(store_, store);
  if (store && !plan_.finished()) store->prepare(snapshot());
  RunOutcome end = RunOutcome::finished;
  Clock::time_point last_save = Clock::now();
  for (std::int64_t taken = 0; !plan_.finished(); ++taken) {
    if (control.stop_after_steps && taken >= *control.stop_after_steps) {
      end = RunOutcome::paused;
      break;
    }
    const bool interval_over = control.save_interval_seconds > 0.0 && communicator_.rank() == 0 &&
                               seconds_since(last_save) >= control.save_interval_seconds;
    const StepFlags mine{asked(control.stop_requested), asked(control.save_requested) || interval_over,
                         store != nullptr && store->part_is_durable()};
    const StepReport report = take_step(mine, control.events);
    if (control.events.on_step) control.events.on_step(report);
    if (store && agreed_.save_durable) {
      store->commit_save();
      tell_saved(*store, control);
    }

    const std::int64_t steps = plan_.progress().steps_taken;
    const bool epoch_over = plan_.progress().epoch != report.plan.epoch || plan_.finished();
    bool stop = agreed_.stop;
    const bool evaluation_due = epoch_over || (control.evaluation_steps > 0 && steps % control.evaluation_steps == 0);
    if (control.evaluation_data && evaluation_due && !stop) {
      const auto results = evaluate(*control.evaluation_data, control.metrics, control.stop_requested);
      stop = results.empty();
      if (const auto loss = results.find("loss"); loss != results.end()) plan_.observe_metric(loss->second);
      if (!results.empty() && control.events.on_evaluation) control.events.on_evaluation(results);
    }
    const bool save_due = agreed_.save || (control.save_steps > 0 && steps % control.save_steps == 0) ||
                          (control.save_at_epoch_end && epoch_over);
    if (store && save_due) {
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
