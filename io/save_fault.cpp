#include "io/save_fault.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>

#include "runtime/plan/error.hpp"

namespace lockstep {

namespace {

constexpr std::array<std::string_view, 8> names = {"start",   "skeleton", "copy",   "data",
                                                   "written", "durable",  "header", "renamed"};

[[noreturn]] void throw_malformed(std::string_view wanted) {
  std::string stages;
  for (const std::string_view name : names) stages += (stages.empty() ? "" : ", ") + std::string(name);
  throw Error(ErrorKind::usage, text("'", std::string(wanted), "' is no drill (crash@save:STAGE or fail@save:STAGE, ",
                                     "then ,rank=R and ,step=S if wanted): give one of the stages ", stages));
}

}  // namespace

SaveFault SaveFault::parse(std::string_view wanted) {
  constexpr std::string_view crash = "crash@save:";
  constexpr std::string_view fail = "fail@save:";
  SaveFault fault;
  std::string_view rest = wanted;
  if (rest.starts_with(crash)) {
    fault.action_ = Action::crash;
    rest.remove_prefix(crash.size());
  } else if (rest.starts_with(fail)) {
    fault.action_ = Action::fail;
    rest.remove_prefix(fail.size());
  } else {
    throw_malformed(wanted);
  }
  const std::string_view name = rest.substr(0, rest.find(','));
  const auto* const found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw_malformed(wanted);
  fault.stage_ = static_cast<SaveStage>(found - names.begin());
  rest.remove_prefix(name.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view condition = rest.substr(0, rest.find(','));
    const std::size_t equals = std::min(condition.find('='), condition.size());
    const std::string_view key = condition.substr(0, equals);
    std::int64_t value = -1;
    const char* const begin = condition.data() + std::min(equals + 1, condition.size());
    const char* const end = condition.data() + condition.size();
    const bool is_number = std::from_chars(begin, end, value).ptr == end && value >= 0;
    if (!is_number || (key != "rank" && key != "step")) throw_malformed(wanted);
    (key == "rank" ? fault.rank_ : fault.step_) = value;
    rest.remove_prefix(condition.size());
  }
  return fault;
}

void SaveFault::reach(SaveStage stage, int rank, std::int64_t step) const {
  if (action_ == Action::none || stage != stage_) return;
  if ((rank_ >= 0 && rank_ != rank) || (step_ >= 0 && step_ != step)) return;
  if (action_ == Action::crash) std::raise(SIGKILL);
  throw Error(ErrorKind::failed,
              text("a failure on purpose at '", names[static_cast<std::size_t>(stage)], "' of the save of step ",
                   step, " on rank ", rank, " (--inject): start without the drill"));
}

std::vector<std::string> SaveFault::stage_names() { return {names.begin(), names.end()}; }

}  // namespace lockstep
