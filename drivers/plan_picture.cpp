#include "drivers/plan_picture.hpp"

#include <algorithm>
#include <cstdint>

#include "drivers/checkpoint_table.hpp"
#include "drivers/plan_course.hpp"
#include "runtime/plan/option_names.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t kMaxDots = 80;       // steps of a curve whose every step gets a dot
constexpr std::int64_t kMaxPoints = 1500;   // steps that are drawn one by one
constexpr std::int64_t kNumBuckets = 800;   // of a longer run: about one for each pixel
constexpr std::int64_t kBucketSamples = 8;  // steps that are looked at in a bucket
constexpr double kMaxMarks = 16.0;

/// What the x axis counts.
enum class Along { steps, epochs, samples };

double x_of(const CourseStep& at, Along along) {
  switch (along) {
    case Along::epochs:
      return at.epochs;
    case Along::samples:
      return static_cast<double>(at.consumed_samples);
    default:
      return static_cast<double>(at.step.step);
  }
}

double x_at_end(const PlanCourse& course, Along along) {
  switch (along) {
    case Along::epochs:
      return course.epochs_at_end();
    case Along::samples:
      return static_cast<double>(course.consumed_at_end());
    default:
      return static_cast<double>(course.plan().total_steps());
  }
}

ChartPoint point_of(const CourseStep& at, Along along) { return {x_of(at, along), at.step.learning_rate}; }

std::vector<ChartPoint> points_of(const PlanCourse& course, Along along) {
  const std::int64_t num_steps = course.num_steps();
  std::vector<ChartPoint> points;
  if (num_steps <= kMaxPoints) {
    for (std::int64_t n = 0; n < num_steps; ++n) points.push_back(point_of(course[n], along));
    return points;
  }
  for (std::int64_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    const std::int64_t begin = num_steps / kNumBuckets * bucket + num_steps % kNumBuckets * bucket / kNumBuckets;
    const std::int64_t end =
        num_steps / kNumBuckets * (bucket + 1) + num_steps % kNumBuckets * (bucket + 1) / kNumBuckets;
    const std::int64_t stride = std::max<std::int64_t>(1, (end - begin) / kBucketSamples);
    ChartPoint low = point_of(course[begin], along);
    ChartPoint high = low;
    for (std::int64_t n = begin + stride; n < end; n += stride) {
      const ChartPoint point = point_of(course[n], along);
      if (point.y < low.y) low = point;
      if (point.y > high.y) high = point;
    }
    points.push_back(low.x <= high.x ? low : high);
    points.push_back(low.x <= high.x ? high : low);
  }
  points.push_back(point_of(course[num_steps - 1], along));
  return points;
}

ChartCurve curve_of(const std::string& name, const PlanCourse& course, Along along) {
  const TrainingPlan& plan = course.plan();
  ChartCurve curve;
  curve.name =
      text(name, ": global batch ", count_text(plan.batch().global_batch_size), ", ", count_text(plan.total_steps()),
           plan.total_steps() == 1 ? " step" : " steps", ", warm-up ", count_text(plan.warmup_steps()));
  curve.points = points_of(course, along);
  curve.style = course.num_steps() <= kMaxDots ? CurveStyle::line_with_dots : CurveStyle::line;
  const std::int64_t after_warmup = course.first_after_warmup();
  if (after_warmup > 0) {
    curve.band_end = after_warmup < course.num_steps() ? x_of(course[after_warmup], along) : x_at_end(course, along);
  }
  return curve;
}

/// The distance of marked epochs.
std::int64_t marked_epochs(double end) {
  return static_cast<std::int64_t>(round_distance(std::max(1.0, end / kMaxMarks), AxisValues::whole_numbers));
}

/// Where epochs begin on an axis of steps; those that are over are left out.
std::vector<ChartMark> marks_along_steps(const PlanCourse& course) {
  const Progress& now = course.plan().progress();
  const double end = course.epochs_at_end();
  const std::int64_t every = marked_epochs(end);
  const std::int64_t first = now.epoch + (now.sample_in_epoch > 0 ? 1 : 0);
  std::vector<ChartMark> marks;
  for (std::int64_t epoch = (first + every - 1) / every * every; static_cast<double>(epoch) <= end; epoch += every) {
    const std::int64_t step = now.steps_taken + course.steps_before_epoch(epoch);
    marks.push_back({static_cast<double>(step), std::to_string(epoch)});
  }
  return marks;
}

/// The same on an axis of epochs, which has their numbers already.
std::vector<ChartMark> marks_along_epochs(double end) {
  std::vector<ChartMark> marks;
  const std::int64_t every = marked_epochs(end);
  for (std::int64_t epoch = every; static_cast<double>(epoch) <= end; epoch += every) {
    marks.push_back({static_cast<double>(epoch), ""});
  }
  return marks;
}

std::string data_text(const BatchPlan& batch) {
  return batch.has_length() ? text(count_text(batch.num_samples), " samples") : std::string("a stream");
}

std::vector<std::string> facts_of(const std::vector<NamedCourse>& courses) {
  const TrainingPlan& plan = courses.front().course.plan();
  const BatchPlan& batch = plan.batch();
  const std::string data = text(data_text(batch), " · micro-batch ", count_text(batch.micro_batch_size));
  if (courses.size() > 1) return {data};
  std::string lengths = text(courses.front().name, " · ");
  if (batch.has_length()) lengths += text(count_text(batch.steps_per_epoch()), " steps an epoch · ");
  return {text(data, " · global batch ", count_text(batch.global_batch_size)),
          text(lengths, count_text(plan.total_steps()), " steps · warm-up ", count_text(plan.warmup_steps()))};
}

}  // namespace

Chart schedule_chart(const PlanAnswer& answer) {
  const std::vector<NamedCourse> courses = distinct_courses(answer.plans);
  const PlanCourse& first = courses.front().course;
  const bool compares = courses.size() > 1 || answer.stored;
  const Along along = !compares ? Along::steps : first.plan().batch().has_length() ? Along::epochs : Along::samples;
  Chart chart;
  chart.title = text("Learning rate: ", name_of(first.plan().state().schedule.options().kind));
  chart.facts = facts_of(courses);
  chart.x_title = along == Along::steps    ? "steps taken"
                  : along == Along::epochs ? "epochs of data"
                                           : "samples consumed";
  chart.x_values = along == Along::epochs ? AxisValues::real_numbers : AxisValues::whole_numbers;
  chart.y_title = "learning rate";
  chart.band_label = "warm-up";
  chart.x_end = 0.0;
  if (answer.stored) {
    const PlanCourse stored(*answer.stored);
    chart.curves.push_back(curve_of(text("stored, ", ranks_text(answer.stored->batch().num_ranks)), stored, along));
    chart.curves.back().style = CurveStyle::faint_dashes;
    chart.x_end = x_at_end(stored, along);
  }
  for (const NamedCourse& named : courses) {
    chart.curves.push_back(curve_of(named.name, named.course, along));
    chart.x_end = std::max(chart.x_end, x_at_end(named.course, along));
  }
  if (along == Along::steps && first.plan().batch().has_length()) {
    chart.marks_title = "epoch";
    chart.marks = marks_along_steps(first);
  }
  if (along == Along::epochs) chart.marks = marks_along_epochs(chart.x_end);
  if (answer.stored && first.num_steps() > 0) {
    const CourseStep now = first[0];
    chart.notes.push_back({x_of(now, along), text("goes on at step ", count_text(now.step.step))});
  }
  return chart;
}

}  // namespace lockstep
