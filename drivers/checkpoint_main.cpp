#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/command_line.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr const char* kName = "lockstep-checkpoint";
constexpr const char* kPathHelp = "A checkpoint, or a folder of checkpoints: then its newest one";

/// A command to run once the command line is read.
using Command = std::function<Answer()>;

void add_show(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string path;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("show", "Print a checkpoint's state and a table of its tensors");
  command->footer(
      "Progress, plan, schedule, loss scaler, launches; of each tensor shape, type, smallest and largest value and\n"
      "norm (of complex numbers: of their magnitudes). All elements are read and compared with their digests.\n"
      "Exit code 1: some are damaged.");
  command->add_option("path", arguments->path, kPathHelp)->required()->type_name("FILE|DIR");
  command->add_flag("--json", arguments->json, "As JSON, for programs");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      return show_checkpoint(arguments->path, arguments->json ? OutputFormat::json : OutputFormat::table, std::cout);
    };
  });
}

void add_verify(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string path;
    bool coverage = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("verify", "Compare all that checkpoints hold with their digests");
  command->footer("Exit code 1: one is damaged, or its coverage is not proved.");
  command->add_option("path", arguments->path, "A checkpoint, or a folder: then all of its checkpoints")
      ->required()
      ->type_name("FILE|DIR");
  command->add_flag("--coverage", arguments->coverage,
                    "Also prove, over all launches of the run, that each sample was used exactly once an epoch");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      return verify_checkpoints(arguments->path, arguments->coverage ? CoverageCheck::on : CoverageCheck::off,
                                std::cout);
    };
  });
}

void add_diff(CLI::App& app, Command& chosen) {
  struct Arguments {
    std::string left;
    std::string right;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("diff", "Say whether two checkpoints hold the same state to the last bit");
  command->footer(
      "The state: weights, buffers, moments, schedule, loss scaler, progress. Where it differs, it is said by how\n"
      "much. Other facts (plan, options, ...) are listed when they differ and do not count; launches and provenance\n"
      "are not compared.\n"
      "Exit code 0: the same; 1: different; 2: one is damaged or cannot be read.");
  command->add_option("a", arguments->left, kPathHelp)->required()->type_name("FILE|DIR");
  command->add_option("b", arguments->right, kPathHelp)->required()->type_name("FILE|DIR");
  command->callback([arguments, &chosen] {
    chosen = [arguments] { return diff_checkpoints(arguments->left, arguments->right, std::cout); };
  });
}

void add_export(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand("export", "Write weights and buffers as a safetensors file, bit for bit");
  command->footer("In Python: safetensors.torch.load_file(\"weights.safetensors\"). Tied names are in the metadata.");
  command->add_option("path", options->checkpoint, kPathHelp)->required()->type_name("FILE|DIR");
  command->add_option("--out", options->target, "The file to write: weights.safetensors")
      ->required()
      ->type_name("FILE");
  command->add_flag("--overwrite", options->overwrite, "Replace the file when it exists");
  command->callback([options, &chosen] { chosen = [options] { return export_safetensors(*options, std::cout); }; });
}

void add_prune(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<PruneOptions>();
  CLI::App* command = app.add_subcommand("prune", "Remove old checkpoints from a folder; never the newest whole one");
  command->add_option("folder", options->folder, "The folder of the checkpoints")->required()->type_name("DIR");
  add_count(*command, "--keep", options->keep, kPositive, "Keep the N newest whole checkpoints")->required();
  add_count(*command, "--keep-every", options->keep_every, kPositive,
            "Also keep those whose step is a multiple of N");
  command->add_flag("--dry-run", options->dry_run, "Only print what would be removed");
  command->callback([options, &chosen] { chosen = [options] { return prune_checkpoints(*options, std::cout); }; });
}

int run(int argc, const char* const* argv) {
  CLI::App app("Looks into checkpoints, compares, checks, exports and removes them.", kName);
  Command chosen;
  prepare_command_line(app);
  app.set_config();  // there is nothing to configure
  app.require_subcommand(1);
  app.footer(
      "Each command has its own --help. Nothing here needs a launcher, and files may be larger than memory.\n"
      "Exit codes: 0 done, whole, the same; 1 damaged, different, or the answer cannot be written; 2 wrong usage, or "
      "a file that cannot be read or "
      "written.");
  add_show(app, chosen);
  add_verify(app, chosen);
  add_diff(app, chosen);
  add_export(app, chosen);
  add_prune(app, chosen);
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) return *code;
  const Answer answer = chosen();
  finish_standard_output();
  return static_cast<int>(answer);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run(argc, argv);
  } catch (const lockstep::StandardOutputFailed& problem) {
    std::cerr << lockstep::kName << ": " << problem.what() << '\n';
    return problem.exit_code();
  } catch (const std::exception& problem) {
    std::cerr << lockstep::kName << ": " << problem.what() << '\n';
    return static_cast<int>(lockstep::Answer::unreadable);
  }
}
