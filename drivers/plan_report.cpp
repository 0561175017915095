#include "drivers/plan_report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "drivers/checkpoint_table.hpp"
#include "drivers/plan_course.hpp"
#include "drivers/plan_facts.hpp"
#include "runtime/plan/exact.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

/// A fraction as "97.7 %"; 100 only when it is 1.
std::string percent(double fraction) {
  const double tenths = fraction == 1.0 ? 1000.0 : std::min(std::round(fraction * 1000.0), 999.0);
  return number_text(tenths / 10.0) + " %";
}

/// One column of the table of plans.
struct Column {
  std::string heading;
  const TrainingPlan* plan;
  PlanCourse course;
  std::optional<EpochLoad> load;
};

/// A row: its name, and its text in a column.
using Row = std::pair<const char*, std::function<std::string(const Column&)>>;

std::string of_epoch(const BatchPlan& batch, std::int64_t number) {
  return batch.has_length() ? count_text(number) : "unknown";
}

std::string extent_text(const std::optional<EpochLoad>& load, Extent EpochLoad::*extent) {
  if (!load) return "unknown";
  const Extent of_ranks = (*load).*extent;
  if (of_ranks.least == of_ranks.most) return count_text(of_ranks.most);
  return count_text(of_ranks.least) + " to " + count_text(of_ranks.most);
}

std::int64_t micro_batches_of_first_step(const BatchPlan& batch) {
  return batch.num_micro_batches_at(0, batch.samples_of_step(0));
}

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {"samples", [](const Column& c) { return of_epoch(c.plan->batch(), c.plan->batch().num_samples); }},
      {"  used in an epoch",
       [](const Column& c) { return of_epoch(c.plan->batch(), c.plan->batch().used_samples()); }},
      {"  of a rank in an epoch", [](const Column& c) { return extent_text(c.load, &EpochLoad::samples); }},
      {"global batch", [](const Column& c) { return count_text(c.plan->batch().global_batch_size); }},
      {"micro-batch", [](const Column& c) { return count_text(c.plan->batch().micro_batch_size); }},
      {"micro-batches of a step",
       [](const Column& c) { return count_text(micro_batches_of_first_step(c.plan->batch())); }},
      {"  of a rank, at most", [](const Column& c) { return count_text(c.plan->batch().accumulation_steps()); }},
      {"  of a rank in an epoch", [](const Column& c) { return extent_text(c.load, &EpochLoad::micro_batches); }},
      {"ranks with work", [](const Column& c) { return count_text(c.plan->batch().num_working_ranks()); }},
      {"utilization of a full step", [](const Column& c) { return percent(c.plan->batch().utilization()); }},
      {"utilization of an epoch",
       [](const Column& c) { return c.load ? percent(c.load->utilization) : std::string("unknown"); }},
      {"steps per epoch",
       [](const Column& c) { return of_epoch(c.plan->batch(), c.plan->batch().steps_per_epoch()); }},
      {"total steps", [](const Column& c) { return count_text(c.plan->total_steps()); }},
      {"  taken", [](const Column& c) { return count_text(c.plan->progress().steps_taken); }},
      {"  left", [](const Column& c) { return count_text(c.plan->steps_left()); }},
      {"warm-up steps", [](const Column& c) { return count_text(c.plan->warmup_steps()); }},
      {"samples consumed at the end", [](const Column& c) { return count_text(c.course.consumed_at_end()); }},
      {"epochs at the end", [](const Column& c) {
         return c.plan->batch().has_length() ? number_text(c.course.epochs_at_end()) : std::string("unknown");
       }}};
  return rows;
}

std::string plans_text(const std::vector<Column>& columns) {
  std::vector<AlignedTable::Column> headings = {{""}};
  for (const Column& column : columns) headings.push_back({column.heading, Side::right});
  AlignedTable table(headings);
  for (const auto& [name, text_of] : rows()) {
    std::vector<std::string> row = {name};
    for (const Column& column : columns) row.push_back(text_of(column));
    table.add(std::move(row));
  }
  return table.text();
}

/// Every number of a resume, old -> new.
std::string changes_text(const std::vector<TrainingPlan>& plans) {
  std::vector<AlignedTable::Column> headings = {{"old -> new"}, {"stored", Side::right}};
  for (const TrainingPlan& plan : plans) headings.push_back({ranks_text(plan.batch().num_ranks), Side::right});
  AlignedTable table(headings);
  const std::vector<PlanChange>& first = plans.front().changes();
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::vector<std::string> row = {first[i].name, first[i].before};
    for (const TrainingPlan& plan : plans) {
      const std::string& after = plan.changes()[i].after;
      row.push_back(after == first[i].before ? "same" : after);
    }
    table.add(std::move(row));
  }
  return table.text();
}

std::string milestones_text(const NamedCourse& named) {
  AlignedTable table({{""},
                      {"steps taken", Side::right},
                      {"epoch", Side::right},
                      {"samples consumed", Side::right},
                      {"learning rate", Side::right}});
  for (const Milestone& milestone : named.course.milestones()) {
    table.add({milestone.name, count_text(milestone.at.step.step), count_text(milestone.at.step.epoch),
               count_text(milestone.at.consumed_samples), number_text(milestone.at.step.learning_rate)});
  }
  return table.text();
}

/// Each warning once, with the numbers of ranks that it is about when it is not about all of them.
std::string warnings_text(const std::vector<TrainingPlan>& plans) {
  std::vector<std::pair<std::string, std::vector<int>>> warnings;
  for (const TrainingPlan& plan : plans) {
    for (const std::string& warning : plan.warnings()) {
      auto known = warnings.begin();
      while (known != warnings.end() && known->first != warning) ++known;
      if (known == warnings.end()) known = warnings.insert(known, {warning, {}});
      known->second.push_back(plan.batch().num_ranks);
    }
  }
  std::string lines;
  for (const auto& [warning, ranks] : warnings) {
    lines += "warning";
    if (ranks.size() < plans.size()) {
      std::string list;
      for (const int num_ranks : ranks) list += text(list.empty() ? "" : ", ", num_ranks);
      lines += text(" (", list, ranks.size() == 1 && ranks.front() == 1 ? " rank)" : " ranks)");
    }
    lines += ": " + warning + '\n';
  }
  return lines;
}

Column column_of(std::string heading, const TrainingPlan& plan) {
  return {std::move(heading), &plan, PlanCourse(plan), epoch_load(plan.batch())};
}

}  // namespace

std::string report_text(const PlanAnswer& answer) {
  std::vector<Column> columns;
  if (answer.stored) {
    columns.push_back(column_of(text("stored, ", ranks_text(answer.stored->batch().num_ranks)), *answer.stored));
  }
  for (const TrainingPlan& plan : answer.plans)
    columns.push_back(column_of(ranks_text(plan.batch().num_ranks), plan));
  const TrainingPlan& first = answer.plans.front();
  std::string report =
      text(answer.stored ? "Plan of a run that goes on, " : "Plan of a run, ", first.state().end.description(),
           first.batch().drop_last ? " --drop-last" : "", "\n\n", plans_text(columns), '\n');
  if (answer.stored) report += changes_text(answer.plans) + '\n';
  for (const NamedCourse& named : distinct_courses(answer.plans)) {
    const TrainingPlan& plan = named.course.plan();
    report += text("Learning rate on ", named.name, ": ", name_of(plan.state().schedule.options().kind), ", base ",
                   shortest(plan.state().base_rate.rate), '\n');
    report += plan.finished() ? std::string("  the run is finished: no step is left\n") : milestones_text(named);
    report += '\n';
  }
  for (const std::string& remark : answer.remarks) report += "warning: " + remark + '\n';
  report += warnings_text(answer.plans);
  while (report.size() > 1 && report.ends_with("\n\n")) report.pop_back();
  return report;
}

}  // namespace lockstep
