#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "drivers/train_options.hpp"

namespace lockstep {

/// Refuses options whose values cannot be meant: empty ones, and those that do nothing without another one that is
/// not given (saving without a folder). Throws Error(usage).
void require_partners(const CLI::App& app, const TrainCommand& command);

/// One sentence for each given option that belongs to another choice than this run's (--momentum with adamw). These
/// are not refused: a configuration file may serve several choices.
std::vector<std::string> unused_train_flags(const CLI::App& app, const TrainCommand& command);

/// The given options that have no effect on the CPU.
std::vector<std::string> given_device_flags(const CLI::App& app);

}  // namespace lockstep
