#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace lockstep {

/// What the commands of lockstep-checkpoint return: the exit code.
enum class Answer : int {
  yes = 0,         ///< done; whole; the same
  no = 1,          ///< damaged; different
  unreadable = 2,  ///< wrong usage, or a file that cannot be read or written
};

/// How a command answers.
enum class OutputFormat { table, json };

// Every command reads piece by piece, whatever the size of the file, and needs neither MPI nor LibTorch. `path` is a
// checkpoint or a folder of checkpoints, which stands for its newest one where one is asked for. Answers go to `out`;
// what cannot be done is thrown as Error.

/// Progress, plan, schedule, loss scaler, launches and all tensors with smallest and largest value and norm.
/// Answers no when elements are damaged.
Answer show_checkpoint(const std::string& path, OutputFormat format, std::ostream& out);

enum class CoverageCheck { off, on };

/// Compares the digests of one checkpoint, or of all of a folder. With the coverage check it also proves, from what
/// the newest whole one has stored, which samples its run used how often.
Answer verify_checkpoints(const std::string& path, CoverageCheck coverage, std::ostream& out);

/// Whether two checkpoints hold the same state to the last bit: tensors, aliases, progress, schedule, loss scaler.
/// Other facts that differ are told and do not count; launches and provenance are not compared.
Answer diff_checkpoints(const std::string& left, const std::string& right, std::ostream& out);

struct ExportOptions {
  std::string checkpoint;
  std::string target;
  bool overwrite = false;
};

/// Writes weights and buffers as a safetensors file, bit for bit, whole or not at all. Each block's digest is checked
/// before it is written.
Answer export_safetensors(const ExportOptions& options, std::ostream& out);

struct PruneOptions {
  std::string folder;
  std::int64_t keep = 0;
  std::optional<std::int64_t> keep_every;
  bool dry_run = false;
};

/// Removes old checkpoints of a folder, never the newest whole one.
Answer prune_checkpoints(const PruneOptions& options, std::ostream& out);

}  // namespace lockstep
