#include "drivers/train_run.hpp"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "drivers/command_line.hpp"
#include "drivers/run_options.hpp"
#include "drivers/train_data.hpp"
#include "drivers/train_models.hpp"
#include "drivers/train_report.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/preflight.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/launch/deadline.hpp"
#include "runtime/launch/stall_guard.hpp"
#include "runtime/launch/stop_files.hpp"
#include "runtime/launch/stop_request.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/plan/shape_text.hpp"
#include "runtime/train/state_snapshot.hpp"
#include "runtime/train/weights_digest.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The drills of --inject.
struct Drills {
  std::set<std::int64_t> overflow_steps;
  SaveFault save;
};

Drills parse_drills(const std::vector<std::string>& texts) {
  Drills drills;
  for (const std::string& drill : texts) {
    const std::string overflow = "overflow@";
    if (drill.rfind(overflow, 0) != 0) {
      drills.save = SaveFault::parse(drill);
      continue;
    }
    std::size_t begin = overflow.size();
    while (begin <= drill.size()) {
      const std::size_t end = std::min(drill.find(',', begin), drill.size());
      // People count steps from 1, the trainer from 0.
      drills.overflow_steps.insert(parse_count("--inject", drill.substr(begin, end - begin), kPositive) - 1);
      begin = end + 1;
    }
  }
  return drills;
}

CommunicatorKind communicator_kind_of(const std::string& name) {
  if (name == "mpi") return CommunicatorKind::mpi;
  return name == "shared-memory" ? CommunicatorKind::shared_memory : CommunicatorKind::automatic;
}

WriterKind writer_of(const TrainCommand& command) {
  if (command.checkpoint_writer == "direct") return WriterKind::direct;
  return command.checkpoint_writer == "collective" ? WriterKind::collective : WriterKind::automatic;
}

CheckpointOptions checkpoint_options_of(const TrainCommand& command, const fs::path& folder, const SaveFault& fault) {
  CheckpointOptions options;
  options.directory = folder;
  options.writer = writer_of(command);
  const bool can_overlap = options.writer != WriterKind::collective;
  options.timing = command.async_save == "on" || (command.async_save == "auto" && can_overlap)
                       ? SaveTiming::asynchronous
                       : SaveTiming::synchronous;
  options.retention = {command.save_total_limit, command.save_keep_every};
  options.on_save_failure = command.on_save_failure == "abort" ? OnSaveFailure::abort : OnSaveFailure::keep_going;
  options.inject = fault;
  options.versions = text("lockstep ", LOCKSTEP_VERSION, ", LibTorch ", TORCH_VERSION);
  return options;
}

std::string host_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  return {name.data(), static_cast<std::size_t>(length)};
}

std::int64_t num_parameters(const Model& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

/// One launch: what run_training() puts together.
class Launch {
 public:
  Launch(const TrainCommand& command, const MpiSession& session, const SlurmEnvironment& environment,
         const StopSignals& signals, std::optional<double> end)
      : command_(command),
        session_(session),
        environment_(environment),
        drills_(parse_drills(command.inject)),
        communicator_(make_communicator(session, communicator_kind_of(command.communicator), command.device,
                                        command.device_settings,
                                        [this](const std::string& line) { notes_.push_back(line); })),
        deadline_(end, command.deadline_margin_seconds),
        signals_(signals) {
    at::set_num_threads(static_cast<int>(command.num_threads));
    if (!command.checkpoint_dir.empty()) folder_ = environment.folder_of_task(command.checkpoint_dir);
  }

  int run();

 private:
  bool speaks() const { return session_.rank() == 0; }
  void say(const std::string& line) {
    if (report_) {
      report_->say(line);
    } else if (speaks()) {
      std::cout << line << std::endl;
    }
  }
  std::unique_ptr<CheckpointReader> open_checkpoint(CheckpointDirectory* store);
  void finetune(Model& model);
  MetricsTarget metrics_target(std::int64_t steps_taken) const;
  void tell_start(const std::string& data_line, const Model& model, const Trainer& trainer,
                  const AttributeGroup& training, const CheckpointReader* resumed);
  void tell_restart(const LaunchCount& launches);
  RunControl control(Trainer& trainer, const Dataset* validation, Model& model);
  int tell_end(const Trainer& trainer, const Model& model, RunOutcome outcome);

  const TrainCommand& command_;
  const MpiSession& session_;
  const SlurmEnvironment& environment_;
  std::vector<std::string> notes_;
  Drills drills_;
  std::unique_ptr<Communicator> communicator_;
  fs::path folder_;
  Deadline deadline_;
  const StopSignals& signals_;
  std::unique_ptr<StopFiles> files_;  ///< rank 0's
  std::unique_ptr<StopRequest> request_;
  std::unique_ptr<TrainReport> report_;  ///< rank 0's
};

std::unique_ptr<CheckpointReader> Launch::open_checkpoint(CheckpointDirectory* store) {
  if (!store) return nullptr;
  if (command_.resume != "auto" && command_.resume != "never") return store->open(command_.resume);
  std::unique_ptr<CheckpointReader> newest = store->open_newest();
  if (newest && command_.resume == "never")
    throw Error(ErrorKind::usage, text("--resume never, but ", newest->path(),
                                       " is there (a new run would mix its "
                                       "checkpoints with those of another): give another --checkpoint-dir, or remove "
                                       "the old checkpoints"));
  return newest;
}

void Launch::finetune(Model& model) {
  const auto file = lockstep::open_checkpoint(*communicator_, command_.finetune_from);
  const auto passed_over = load_weights(*file, model, {command_.allow_missing, command_.allow_unexpected});
  say(text("weights      from ", command_.finetune_from));
  for (const std::string& name : passed_over) say("             passed over: " + name);
}

/// Where the metrics go, and whose the lines are that are there.
MetricsTarget Launch::metrics_target(std::int64_t steps_taken) const {
  MetricsTarget target;
  target.steps_taken = steps_taken;
  if (folder_.empty()) return {command_.metrics_file, "", EarlierLines::foreign, steps_taken};
  const fs::path own = fs::weakly_canonical(fs::absolute(folder_));
  const fs::path file = command_.metrics_file.empty() ? folder_ / "metrics.jsonl" : fs::path(command_.metrics_file);
  target.file = file.string();
  if (fs::weakly_canonical(fs::absolute(file).parent_path()) == own) return target;
  target.run = own.string();
  // A requeue that comes before the first save starts at step 0 again, but not in a folder without launches.
  const bool goes_on = steps_taken > 0 || StallGuard::has_launches(folder_);
  target.earlier = goes_on ? EarlierLines::marked : EarlierLines::foreign;
  return target;
}

void Launch::tell_start(const std::string& data_line, const Model& model, const Trainer& trainer,
                        const AttributeGroup& training, const CheckpointReader* resumed) {
  std::string hosts;
  std::map<std::string, int> ranks_of_host;
  for (const std::string& host : gather_texts(*communicator_, host_name())) ++ranks_of_host[host];
  for (const auto& [host, ranks] : ranks_of_host) hosts += text(hosts.empty() ? "" : ", ", host, " x ", ranks);
  if (!speaks()) return;
  say(text("lockstep     ", LOCKSTEP_VERSION, ", ", session_.num_ranks(),
           session_.num_ranks() == 1 ? " rank" : " ranks", " (", hosts, "), ", communicator_->name(), ", LibTorch ",
           TORCH_VERSION, ", ", command_.num_threads, command_.num_threads == 1 ? " thread" : " threads", " a rank"));
  if (communicator_->device_index())
    say(text("device       one a rank, reduction ", name_of(command_.device_settings.reduction),
             command_.deterministic ? ", deterministic" : "", command_.cuda_graph ? ", CUDA graphs" : ""));
  if (environment_.in_job()) say("slurm        " + environment_.describe());
  for (const std::string& note : notes_) say("note         " + note);
  if (folder_.empty()) say("note         nothing will be saved: there is no --checkpoint-dir");
  const bool saves_on_its_way =
      command_.save_steps > 0 || command_.save_interval_seconds > 0.0 || command_.save_at_epoch_end;
  if (!folder_.empty() && !saves_on_its_way)
    say("note         saved at the end and at a stop only: with --save-interval-seconds 600 a crash costs ten "
        "minutes");
  say("data         " + data_line);
  say(text("model        ", command_.model.kind, ", ", num_parameters(model), " parameters, ", command_.loss, ", ",
           name_of(command_.trainer.optimizer.kind), ", ", name_of(command_.trainer.precision)));
  say(plan_text(trainer.plan()));
  if (resumed)
    for (const PlanChange& change : changed_options(resumed->attributes(), training))
      say(text("resume       ", change.name, ": ", change.before, " -> ", change.after));
  if (resumed) say(text("resumed      ", resumed->path(), " after step ", trainer.plan().progress().steps_taken));
  for (const std::string& note : trainer.resume_notes()) say("note         " + note);
  if (report_->num_metrics_dropped() > 0)
    say(text("lost         ", report_->num_metrics_dropped(),
             " steps were taken and not saved: they are taken again"));
}

/// What interruptions have cost so far. Rank 0.
void Launch::tell_restart(const LaunchCount& launches) {
  if (launches.in_all == 1) return;
  const double passed = std::max(unix_seconds() - launches.first_unix_seconds, report_->kept_seconds());
  const int goodput = passed > 0.0 ? static_cast<int>(100.0 * report_->kept_seconds() / passed) : 0;
  say(text("restart      ", launches.in_all - 1, launches.in_all == 2 ? " restart" : " restarts", " in ",
           duration_text(passed), ", of which the steps that count took ", duration_text(report_->kept_seconds()),
           " (goodput ", goodput, " %)"));
}

RunControl Launch::control(Trainer& trainer, const Dataset* validation, Model& model) {
  RunControl control;
  control.stop_after_steps = command_.stop_after_steps;
  control.save_steps = command_.save_steps;
  control.save_interval_seconds = command_.save_interval_seconds;
  control.save_at_epoch_end = command_.save_at_epoch_end;
  control.evaluation_data = validation;
  control.metrics = make_metrics(command_.loss, model);
  control.evaluation_steps = command_.evaluation_steps;
  control.stop_requested = [this] { return request_->requested(); };
  control.save_requested = [this] { return files_ && files_->take_save(); };
  control.on_saved = [this](double seconds) { deadline_.observe_save(seconds); };
  control.events.on_step = [this, &trainer](const StepReport& step) {
    deadline_.observe_step(step.seconds);
    if (report_) report_->step(step, trainer.plan(), trainer.loss_scaler());
  };
  control.events.on_evaluation = [this, &trainer](const std::map<std::string, double>& results) {
    if (report_) report_->evaluation(results, trainer.plan().progress());
  };
  control.events.on_message = [this](const std::string& line) {
    if (report_) say(line);
  };
  return control;
}

int Launch::tell_end(const Trainer& trainer, const Model& model, RunOutcome outcome) {
  // A reason is known on the rank that had it.
  std::string reason;
  for (const std::string& of_rank : gather_texts(*communicator_, request_->reason()))
    if (reason.empty()) reason = of_rank;
  const std::int64_t steps = trainer.plan().progress().steps_taken;
  // Whoever starts a run again that saved nothing has it from its beginning, and perhaps for ever.
  const ErrorKind interrupted = folder_.empty() ? ErrorKind::do_not_requeue : ErrorKind::interrupted;
  if (!speaks()) return outcome == RunOutcome::finished ? 0 : static_cast<int>(interrupted);
  if (trainer.loss_scaler().options().enabled)
    say(text("overflows    ", trainer.loss_scaler().num_overflows(), " in all, loss scale ",
             trainer.loss_scaler().scale(), ", ", trainer.plan().progress().steps_skipped, " steps dropped"));
  say(text("digest       ", weights_digest(model), " of the weights after step ", steps));
  if (outcome == RunOutcome::finished) {
    if (files_ && !files_->done()) files_->mark_done(text("finished after step ", steps));
    say("finished     all steps are taken");
    return 0;
  }
  say(text("interrupted  after step ", steps, " of ", trainer.plan().total_steps(), " (",
           outcome == RunOutcome::paused ? "--stop-after-steps" : reason, "); ",
           folder_.empty() ? "nothing is saved: no --checkpoint-dir" : "the state is saved, start again to go on"));
  return static_cast<int>(interrupted);
}

int Launch::run() {
  for (const std::string& warning : check_launch(environment_, session_.num_ranks())) notes_.push_back(warning);
  notes_.insert(notes_.end(), command_.unused_options.begin(), command_.unused_options.end());
  if (!communicator_->device_index() && command_.reduction == ReductionOrder::fast)
    notes_.push_back("--reduction fast has no effect on the CPU, where the exact order costs nothing");
  for (const std::string& option : command_.device_options)
    if (!communicator_->device_index()) notes_.push_back(option + " is not used: the run is on the CPU");
  TrainData data = open_train_data(*communicator_, command_);

  TrainerOptions options = command_.trainer;
  options.overflow_drill_steps = drills_.overflow_steps;
  if (command_.cuda_graph) options.make_graph = [this] { return communicator_->make_graph(); };
  std::shared_ptr<Model> model;
  const ModelOptions model_options = resolve_model(*communicator_, command_, data);
  AttributeGroup training = training_options(command_, model_options);
  const std::string data_digest = sampled_digest(*communicator_, *data.training);
  training[kTrainDataDigest] = data_digest;
  options.resolved_options = plan_options(options.plan);
  options.resolved_options.insert(training.begin(), training.end());
  agree(*communicator_, [&] { model = make_model(model_options, options.plan.seed); });

  std::unique_ptr<CheckpointDirectory> store;
  if (!folder_.empty()) {
    CheckpointOptions checkpoints = checkpoint_options_of(command_, folder_, drills_.save);
    checkpoints.report = [this](const std::string& line) { say("checkpoint   " + line); };
    store = std::make_unique<CheckpointDirectory>(*communicator_, std::move(checkpoints));
  }
  const std::unique_ptr<CheckpointReader> resumed = open_checkpoint(store.get());
  if (!resumed && !command_.finetune_from.empty()) finetune(*model);

  const std::string data_line =
      text(command_.train_data, ": ", data.training->num_samples(), " samples of ",
           name_of(data.training->fields()[0].type), " ", shape_text(data.training->fields()[0].sample_shape));
  const SourceDataset train_set(std::move(data.training));
  std::unique_ptr<SourceDataset> validation_set;
  if (data.validation) validation_set = std::make_unique<SourceDataset>(std::move(data.validation));
  Trainer trainer(*model, make_loss(command_.loss, *model), train_set, options, *communicator_, resumed.get());
  if (resumed && !trainer.plan().finished()) check_data_of_epoch(*resumed, data_digest);

  if (speaks() && !folder_.empty()) files_ = std::make_unique<StopFiles>(folder_);
  request_ = std::make_unique<StopRequest>(signals_, speaks() ? &deadline_ : nullptr, files_.get());
  agree(*communicator_, [&] {
    if (!speaks()) return;
    report_ = std::make_unique<TrainReport>(metrics_target(trainer.plan().progress().steps_taken), command_.log_steps,
                                            progress_style_of(command_.progress));
  });
  tell_start(data_line, *model, trainer, training, resumed.get());
  if (trainer.plan().finished() && resumed) {
    say("complete     this run has taken all its steps: nothing is done");
  } else {
    if (store && !command_.no_preflight) {
      const std::uint64_t bytes = checkpoint_bytes(trainer.snapshot());
      const std::string found = run_preflight(*communicator_, folder_, writer_of(command_), bytes);
      say("checkpoint   " + found);
    }
    agree(*communicator_, [&] {
      if (!files_) return;
      files_->clear_done();
      StallGuard guard(folder_, command_.max_restarts_without_progress);
      tell_restart(guard.count_launch(trainer.plan().progress().steps_taken));
    });
  }
  const RunOutcome outcome = trainer.run(control(trainer, validation_set.get(), *model), store.get());
  return tell_end(trainer, *model, outcome);
}

}  // namespace

std::optional<double> allocation_end_of(const TrainCommand& command, const SlurmEnvironment& environment) {
  std::optional<double> limit;
  if (!command.time_limit.empty()) limit = parse_time_limit(command.time_limit);
  return allocation_end(environment, limit, unix_seconds());
}

int run_training(const TrainCommand& command, const MpiSession& session, const SlurmEnvironment& environment,
                 const StopSignals& signals, std::optional<double> allocation_end_seconds) {
  return Launch(command, session, environment, signals, allocation_end_seconds).run();
}

}  // namespace lockstep
