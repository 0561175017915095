#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <vector>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/checkpoint_pieces.hpp"
#include "drivers/checkpoint_table.hpp"
#include "io/posix_file.hpp"
#include "io/retention.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

/// What is to become of a folder's checkpoints, by step.
struct Decision {
  std::int64_t newest = 0;  ///< the newest whole one
  std::set<std::int64_t> removed;
  std::map<std::int64_t, std::string> damaged;  ///< and the sentence that says how
};

/// How a checkpoint is damaged; none when it is whole.
std::optional<std::string> damage_of(const std::string& path) {
  try {
    CheckpointFile(path).verify();
    return std::nullopt;
  } catch (const DamagedCheckpoint& damage) {
    return damage.what();
  }
}

/// Applies the rule to the checkpoints that are not known to be damaged, verifies those that are to be kept by their
/// number, and begins again when one of them is damaged: a damaged one never takes the place of a whole one.
Decision decide(const PruneOptions& options, const std::map<std::int64_t, std::string>& files) {
  const RetentionRule rule{options.keep, options.keep_every.value_or(0)};
  Decision decision;
  std::set<std::int64_t> verified;
  for (;;) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, path] : files) {
      if (decision.damaged.count(step) == 0) steps.push_back(step);
    }
    if (steps.empty()) {
      throw Error(ErrorKind::failed,
                  text("none of the ", files.size(), " checkpoints in '", options.folder, "' is whole (",
                       decision.damaged.rbegin()->second, "): nothing was removed"));
    }
    decision.newest = steps.back();
    const std::vector<std::int64_t> removed = steps_to_remove(rule, steps, decision.newest);
    decision.removed = {removed.begin(), removed.end()};
    const auto unknown = std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t step) {
      const bool by_number = step == decision.newest || rule.keep_every == 0 || step % rule.keep_every != 0;
      return by_number && decision.removed.count(step) == 0 && verified.count(step) == 0;
    });
    if (unknown == steps.rend()) return decision;
    if (const auto damage = damage_of(files.at(*unknown))) {
      decision.damaged[*unknown] = *damage;
    } else {
      verified.insert(*unknown);
    }
  }
}

}  // namespace

Answer prune_checkpoints(const PruneOptions& options, std::ostream& out) {
  if (!std::filesystem::is_directory(options.folder)) {
    throw Error(ErrorKind::usage,
                text("'", options.folder, "' is not a folder: name the folder of a run's checkpoints"));
  }
  std::map<std::int64_t, std::string> files;
  for (const std::string& path : find_checkpoints(options.folder)) {
    files[*step_of_file_name(std::filesystem::path(path).filename().string())] = path;
  }
  const Decision decision = decide(options, files);
  AlignedTable table({{"checkpoint", Side::left}, {"step", Side::right}, {"size", Side::right}, {"", Side::left}});
  std::uint64_t num_bytes = 0;
  for (const auto& [step, path] : files) {
    const std::uint64_t size = std::filesystem::file_size(path);
    const bool is_removed = decision.removed.count(step) != 0;
    table.add({path, count_text(step), bytes_text(size),
               is_removed                          ? options.dry_run ? "would be removed" : "removed"
               : decision.damaged.count(step) != 0 ? "damaged, left alone"
               : step == decision.newest           ? "kept, the newest whole one"
                                                   : "kept"});
    if (!is_removed) continue;
    num_bytes += size;
    if (!options.dry_run) remove_file(path);
  }
  if (!options.dry_run && !decision.removed.empty()) sync_folder(options.folder);
  out << table.text() << "  " << decision.removed.size() << " of " << files.size() << " checkpoints "
      << (options.dry_run ? "would be removed" : "removed") << ", " << bytes_text(num_bytes) << '\n';
  for (const auto& [step, damage] : decision.damaged) out << damage << '\n';
  return Answer::yes;
}

}  // namespace lockstep
