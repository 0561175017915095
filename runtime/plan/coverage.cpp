#include "runtime/plan/coverage.hpp"

#include <algorithm>
#include <charconv>
#include <iomanip>

#include "runtime/plan/sampler.hpp"

namespace lockstep {
namespace {

constexpr const char* group_name = "coverage";
constexpr std::size_t span_fields = 4;
constexpr std::size_t segment_fields = 8;

std::string to_hex(std::uint64_t value) {
  std::ostringstream stream;
  stream << std::hex << std::setw(16) << std::setfill('0') << value;
  return stream.str();
}

std::uint64_t from_hex(const std::string& digits) {
  std::uint64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (read.ec != std::errc{} || read.ptr != digits.data() + digits.size()) {
    throw Error(ErrorKind::failed,
                text("the stored hash chain '", digits, "' is no hexadecimal number: take another checkpoint"));
  }
  return value;
}

std::vector<std::int64_t> numbers(const AttributeTree& tree, const std::string& name, std::size_t fields) {
  if (!has_attribute(tree, group_name, name)) return {};
  const auto& values = attribute<std::vector<std::int64_t>>(tree, group_name, name);
  if (values.size() % fields != 0) {
    throw Error(ErrorKind::failed, text("the stored attribute ", group_name, "/", name, " has ", values.size(),
                                        " numbers, not a multiple of ", fields, ": take another checkpoint"));
  }
  return values;
}

}  // namespace

std::uint64_t sample_mark(std::int64_t epoch, std::int64_t position, std::int64_t id) {
  const std::uint64_t place = mix64(mix64(static_cast<std::uint64_t>(epoch)) ^ static_cast<std::uint64_t>(position));
  return mix64(place ^ static_cast<std::uint64_t>(id));
}

void Coverage::begin_segment(const Progress& progress, const BatchPlan& batch) {
  segments_.push_back({progress.steps_taken, progress.epoch, progress.sample_in_epoch, batch});
}

void Coverage::add_step(std::int64_t epoch, std::int64_t sample_in_epoch, std::int64_t samples) {
  for (const SampleRange& range : segments_.back().batch.ranges_of_step(sample_in_epoch, samples)) {
    add_range(epoch, range);
  }
}

void Coverage::add_range(std::int64_t epoch, SampleRange range) {
  if (spans_.empty() || spans_.back().first_epoch + spans_.back().num_epochs - 1 < epoch) {
    const std::size_t size = spans_.size();
    if (size >= 2 && spans_[size - 1].ranges == spans_[size - 2].ranges &&
        spans_[size - 2].first_epoch + spans_[size - 2].num_epochs == spans_[size - 1].first_epoch) {
      spans_[size - 2].num_epochs += spans_[size - 1].num_epochs;
      spans_.pop_back();
    }
    spans_.push_back({epoch, 1, {range}});
    return;
  }
  std::vector<SampleRange>& ranges = spans_.back().ranges;
  auto next = std::upper_bound(ranges.begin(), ranges.end(), range,
                               [](const SampleRange& a, const SampleRange& b) { return a.begin < b.begin; });
  if (next != ranges.begin() && (next - 1)->end >= range.begin) {
    --next;
    next->end = range.end;
  } else {
    next = ranges.insert(next, range);
  }
  if (next + 1 != ranges.end() && (next + 1)->begin <= next->end) {
    next->end = (next + 1)->end;
    ranges.erase(next + 1);
  }
}

void Coverage::chain(std::uint64_t step_mark) {
  chain_ = mix64(chain_ ^ step_mark);
  ++chained_steps_;
}

void Coverage::store(AttributeTree& tree) const {
  AttributeGroup& group = tree[group_name];
  std::vector<std::int64_t> spans;
  for (const EpochSpan& span : spans_) {
    for (const SampleRange& range : span.ranges) {
      spans.insert(spans.end(), {span.first_epoch, span.num_epochs, range.begin, range.end});
    }
  }
  std::vector<std::int64_t> segments;
  std::vector<std::int64_t> shards;
  for (const PlanSegment& segment : segments_) {
    const BatchPlan& batch = segment.batch;
    segments.insert(segments.end(),
                    {segment.first_step, segment.epoch, segment.sample_in_epoch, batch.global_batch_size,
                     batch.num_samples, batch.micro_batch_size,
                     batch.is_sharded() ? std::int64_t{batch.num_ranks} : 1, std::int64_t{batch.drop_last}});
    shards.push_back(static_cast<std::int64_t>(batch.samples_of_rank.size()));
    shards.insert(shards.end(), batch.samples_of_rank.begin(), batch.samples_of_rank.end());
  }
  if (!spans.empty()) group["ranges"] = spans;
  if (!segments.empty()) group["plans"] = segments;
  if (!shards.empty()) group["shards_of_plans"] = shards;
  group["chain"] = to_hex(chain_);
  group["chained_steps"] = chained_steps_;
}

Coverage Coverage::from(const AttributeTree& tree) {
  Coverage coverage;
  const auto spans = numbers(tree, "ranges", span_fields);
  for (std::size_t i = 0; i < spans.size(); i += span_fields) {
    const SampleRange range{spans[i + 2], spans[i + 3]};
    if (!coverage.spans_.empty() && coverage.spans_.back().first_epoch == spans[i]) {
      coverage.spans_.back().ranges.push_back(range);
    } else {
      coverage.spans_.push_back({spans[i], spans[i + 1], {range}});
    }
  }
  const auto segments = numbers(tree, "plans", segment_fields);
  const auto shards = numbers(tree, "shards_of_plans", 1);
  std::size_t shard = 0;
  for (std::size_t i = 0; i < segments.size(); i += segment_fields) {
    PlanSegment segment{segments[i], segments[i + 1], segments[i + 2], {}};
    segment.batch.global_batch_size = segments[i + 3];
    segment.batch.num_samples = segments[i + 4];
    segment.batch.micro_batch_size = segments[i + 5];
    segment.batch.num_ranks = static_cast<int>(segments[i + 6]);
    segment.batch.drop_last = segments[i + 7] != 0;
    const std::size_t count = shard < shards.size() ? static_cast<std::size_t>(shards[shard++]) : 0;
    if (shards.size() - shard < count) {
      throw Error(ErrorKind::failed,
                  text("the stored attribute ", group_name, "/shards_of_plans ends early: take another checkpoint"));
    }
    for (std::size_t rank = 0; rank < count; ++rank) segment.batch.samples_of_rank.push_back(shards[shard++]);
    coverage.segments_.push_back(std::move(segment));
  }
  coverage.chain_ = from_hex(attribute<std::string>(tree, group_name, "chain"));
  coverage.chained_steps_ = attribute<std::int64_t>(tree, group_name, "chained_steps");
  return coverage;
}

}  // namespace lockstep
