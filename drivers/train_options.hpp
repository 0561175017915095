#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drivers/train_models.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/train/trainer.hpp"

namespace lockstep {

std::string name_of(OverflowPolicy policy);
std::string name_of(NonfinitePolicy policy);

/// Everything that lockstep-train's command line says, checked one by one but not yet resolved.
struct TrainCommand {
  TrainerOptions trainer;
  ModelOptions model;
  std::optional<std::int64_t> num_classes;
  std::string loss = "cross-entropy";

  std::string train_data;
  std::string validation_data;
  std::string inputs_name = "images";
  std::string targets_name = "labels";

  std::string checkpoint_dir;
  std::string resume = "auto";  ///< "auto", "never", or a checkpoint file
  std::string finetune_from;
  bool allow_missing = false;
  bool allow_unexpected = false;
  std::int64_t save_steps = 0;
  double save_interval_seconds = 0.0;
  bool save_at_epoch_end = false;
  std::int64_t save_total_limit = 0;
  std::int64_t save_keep_every = 0;
  std::string on_save_failure = "continue";
  std::string checkpoint_writer = "auto";
  std::string async_save = "auto";
  bool no_preflight = false;

  std::optional<std::int64_t> stop_after_steps;
  std::int64_t evaluation_steps = 0;
  std::string stop_signals = "TERM,USR1,USR2";
  std::string time_limit;
  double deadline_margin_seconds = 30.0;
  std::int64_t max_restarts_without_progress = 3;

  DeviceKind device = DeviceKind::automatic;
  DeviceSettings device_settings;
  std::optional<ReductionOrder> reduction;
  bool deterministic = false;
  std::int64_t bucket_cap_mb = 25;
  bool cuda_graph = false;

  std::string communicator = "auto";  ///< "auto", "mpi", "shared-memory"
  std::int64_t num_threads = 1;
  std::string progress = "auto";  ///< "auto", "bar", "lines"
  std::int64_t log_steps = 50;
  std::string metrics_file;
  std::vector<std::string> inject;
  std::vector<std::string> unused_options;  ///< one sentence each: given, but of no effect
  std::vector<std::string> device_options;  ///< those given that the CPU has no use for
};

/// Adds lockstep-train's options to `app`, in help groups; `command` must outlive the parse.
void add_train_flags(CLI::App& app, TrainCommand& command);

/// Settles the options of devices. Throws Error(usage) where they contradict each other.
void resolve_device_options(TrainCommand& command);

}  // namespace lockstep
