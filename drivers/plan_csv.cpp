#include "drivers/plan_csv.hpp"

#include <charconv>
#include <concepts>
#include <string>

namespace lockstep {
namespace {

constexpr std::size_t kBlockBytes = 1 << 16;

void append(std::string& line, std::integral auto number) {
  char digits[24];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append(std::string& line, double number) {
  char digits[40];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, number, std::chars_format::general, 17).ptr);
}

template <class First, class... Rest>
void append_row(std::string& lines, First first, Rest... rest) {
  append(lines, first);
  ((lines += ',', append(lines, rest)), ...);
  lines += '\n';
}

void put(std::string& lines, std::ostream& out) {
  out.write(lines.data(), static_cast<std::streamsize>(lines.size()));
  if (!out) {
    throw Error(ErrorKind::failed,
                "the table of the schedule was not written to its end (the disk is full or the "
                "reader has gone): free space or choose another file");
  }
  lines.clear();
}

}  // namespace

void write_csv_header(std::ostream& out) {
  out << "step,epoch,consumed_samples,lr,samples,micro_batches,position,ranks\n";
}

void write_csv(TrainingPlan plan, std::ostream& out) {
  std::string lines;
  while (!plan.finished()) {
    const StepPlan step = plan.next_step();
    plan.complete_step(true);
    append_row(lines, plan.progress().steps_taken, step.epoch, plan.progress().consumed_samples, step.learning_rate,
               step.num_samples, step.num_micro_batches, step.position, plan.batch().num_ranks);
    if (lines.size() >= kBlockBytes) put(lines, out);
  }
  put(lines, out);
}

}  // namespace lockstep
