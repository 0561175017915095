#include <optional>
#include <ostream>
#include <vector>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/checkpoint_pieces.hpp"
#include "drivers/checkpoint_table.hpp"
#include "runtime/plan/coverage_proof.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kMostIds = 20;

/// Prints what the run behind a checkpoint did with its samples.
void print_coverage(const CoverageProof& proof, const std::string& path, std::ostream& out) {
  AlignedTable table({{"epoch", Side::right},
                      {"samples", Side::right},
                      {"used once", Side::right},
                      {"left out", Side::right},
                      {"", Side::left}});
  std::string left_out;
  for (const EpochCoverage& epoch : proof.epochs) {
    const std::int64_t rest = epoch.num_samples - epoch.num_used;
    table.add({count_text(epoch.epoch), count_text(epoch.num_samples), count_text(epoch.num_used),
               epoch.is_over ? count_text(rest) : "-", epoch.is_over ? "" : "under way"});
    if (epoch.left_out.empty()) continue;
    left_out +=
        text("  left out of epoch ", epoch.epoch, " by drop-last: ", value_text(epoch.left_out, kMostIds), '\n');
  }
  out << "\nCoverage of " << path << '\n' << table.text() << left_out;
  out << "  proved: " << count_text(proof.num_steps) << " steps used " << count_text(proof.num_samples)
      << " samples, none twice in an epoch"
      << (proof.chain_proved ? "; the ids that were read are those\n"
                             : "; which ids were read is not proved (the run did not chain every step)\n");
}

}  // namespace

Answer verify_checkpoints(const std::string& path, CoverageCheck coverage, std::ostream& out) {
  AlignedTable table({{"checkpoint", Side::left},
                      {"step", Side::right},
                      {"size", Side::right},
                      {"tensors", Side::right},
                      {"", Side::left}});
  std::string problems;
  std::optional<CheckpointFile> newest_whole;
  for (const std::string& name : find_checkpoints(path)) {
    std::vector<std::string> row{name, "-", "-", "-", "damaged"};
    try {
      CheckpointFile file(name);
      const Catalogue& catalogue = file.catalogue();
      row = {name, count_text(catalogue.header.step), bytes_text(catalogue.header.file_bytes),
             count_text(static_cast<std::int64_t>(catalogue.tensors.size())), "damaged"};
      file.verify();
      row.back() = "whole";
      newest_whole = std::move(file);
    } catch (const DamagedCheckpoint& damage) {
      problems += text(damage.what(), '\n');
    }
    table.add(std::move(row));
  }
  out << table.text();
  if (coverage == CoverageCheck::on && newest_whole) {
    try {
      print_coverage(verify_coverage(newest_whole->catalogue().attributes), newest_whole->path(), out);
    } catch (const Error& problem) {
      problems += text(newest_whole->path(), ": ", problem.what(), '\n');
    }
  }
  if (!problems.empty()) out << '\n' << problems;
  return problems.empty() ? Answer::yes : Answer::no;
}

}  // namespace lockstep
