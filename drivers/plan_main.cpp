#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "drivers/checkpoint_pieces.hpp"
#include "drivers/command_line.hpp"
#include "drivers/plan_csv.hpp"
#include "drivers/plan_flags.hpp"
#include "drivers/plan_json.hpp"
#include "drivers/plan_picture.hpp"
#include "drivers/plan_report.hpp"
#include "drivers/plan_request.hpp"
#include "io/checkpoint_file.hpp"

namespace lockstep {
namespace {

constexpr const char* kStandardOutput = "-";

/// Parses the command line on top of what `request` holds.
std::optional<int> parse(int argc, char** argv, PlanRequest& request) {
  CLI::App app(
      "Shows how a run would be cut into steps, how long it is and how its learning rate\n"
      "goes, before it costs a node-hour. Needs no launcher; only reads.",
      "lockstep-plan");
  prepare_command_line(app);
  // A training program's configuration file holds more than a plan.
  app.allow_config_extras(CLI::config_extras_mode::ignore);
  add_request_flags(app, request);
  if (const auto exit_code = parse_command_line(app, argc, argv)) return exit_code;
  request.remarks = unused_plan_flags(app, request.options);
  for (std::string& sentence : misspelt_in_configuration(app)) request.remarks.push_back(std::move(sentence));
  return std::nullopt;
}

/// Writes to the file `path`, or to standard output. Nothing is written when there is no path.
void write(const std::string& path, const std::function<void(std::ostream&)>& content) {
  if (path.empty()) return;
  std::ofstream file;
  if (path != kStandardOutput) file.open(path, std::ios::trunc);
  std::ostream& out = path == kStandardOutput ? std::cout : file;
  if (out) content(out);
  if (path == kStandardOutput) {
    finish_standard_output();
  } else if (!out.flush()) {
    throw Error(ErrorKind::failed,
                text("cannot write ", path, " (the folder is missing, not writable or full): choose another file"));
  }
}

void write_outputs(const PlanRequest& request, const PlanAnswer& answer) {
  write(request.json, [&](std::ostream& out) { out << to_json(answer).dump(2) << '\n'; });
  write(request.csv, [&](std::ostream& out) {
    write_csv_header(out);
    for (const TrainingPlan& plan : answer.plans) write_csv(plan, out);
  });
  write(request.plot, [&](std::ostream& out) { out << to_svg(schedule_chart(answer)); });
}

/// How many of the outputs go to standard output.
int num_on_standard_output(const PlanRequest& request) {
  return (request.json == kStandardOutput) + (request.csv == kStandardOutput) + (request.plot == kStandardOutput);
}

int run(int argc, char** argv) {
  PlanRequest request;
  if (const auto exit_code = parse(argc, argv, request)) return *exit_code;
  if (num_on_standard_output(request) > 1) {
    throw Error(ErrorKind::usage,
                "two outputs are to go to standard output (they would mix): give one of them a file name");
  }
  std::optional<AttributeTree> stored;
  if (!request.from.empty()) {
    stored = CheckpointFile(find_checkpoint(request.from)).catalogue().attributes;
    request.options = options_to_go_on(TrainingPlan::as_stored(*stored).state(), request.options);
    if (const auto exit_code = parse(argc, argv, request)) return *exit_code;
  }
  const PlanAnswer found = answer(request, stored);
  if (num_on_standard_output(request) == 0) {
    std::cout << report_text(found);
    finish_standard_output();
  }
  write_outputs(request, found);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run_program("lockstep-plan", argc, argv, lockstep::run); }
