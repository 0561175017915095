#include "runtime/train/step_exchange.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "runtime/plan/node_sums.hpp"
#include "runtime/train/block_squares.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

/// The blocks of parameters that `rank` owns.
LeafRange parameter_blocks_of(const FlatGroup& group, int num_ranks, int rank) {
  const LeafRange blocks = share_of(group.layout.num_blocks, num_ranks, rank);
  return {std::min(blocks.begin, group.parameter_blocks), std::min(blocks.end, group.parameter_blocks)};
}

/// The scalars one rank brings, as they travel.
struct Header {
  std::int64_t failed = 0;
  std::int64_t stop = 0;
  std::int64_t save = 0;
  std::int64_t save_durable = 0;
  std::int64_t loss_kind = 0;
  std::int64_t buffers_finite = 1;
  std::uint64_t sample_mark = 0;
};

void append(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

void append(std::vector<std::byte>& bytes, const std::vector<double>& values) {
  append(bytes, values.data(), values.size() * sizeof(double));
}

/// Takes values off the front of a message.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Header header() {
    Header value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  void doubles(int count, std::vector<double>& into) {
    if (count == 0) return;
    const std::size_t old = into.size();
    into.resize(old + static_cast<std::size_t>(count));
    std::memcpy(into.data() + old, bytes_.data(), static_cast<std::size_t>(count) * sizeof(double));
    bytes_ = bytes_.subspan(static_cast<std::size_t>(count) * sizeof(double));
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

StepExchange::StepExchange(FlatState& state, const GradientBuckets& buckets, Communicator& communicator)
    : state_(state), buckets_(buckets), communicator_(communicator) {
  for (const FlatGroup& group : state_.groups()) {
    slices_.push_back(at::zeros({group.slice().size()}, group.weights.options()));
    std::vector<LeafRange> shares;
    for (int rank = 0; rank < communicator_.num_ranks(); ++rank)
      shares.push_back(parameter_blocks_of(group, communicator_.num_ranks(), rank));
    norm_programs_.push_back(make_tree_program(group.parameter_blocks, shares));
  }
}

const TreeProgram& StepExchange::program_for(const BatchPlan& plan, const StepPlan& step) {
  std::vector<LeafRange> shares;
  std::vector<std::int64_t> ends;
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank) {
    shares.push_back(plan.share_at(step.first_sample, step.num_samples, rank).micro_batches);
    ends.push_back(shares.back().end);
  }
  const auto found = programs_.find(ends);
  if (found != programs_.end()) return found->second;
  return programs_.emplace(ends, make_tree_program(step.num_micro_batches, shares)).first->second;
}

void StepExchange::begin(const BatchPlan& plan, const StepPlan& step) {
  program_ = &program_for(plan, step);
  num_started_ = 0;
}

void StepExchange::start(const Bucket& bucket) {
  ++num_started_;
  FlatExchange& exchange = *state_.groups()[bucket.group].exchange;
  if (exchange.overlaps())
    exchange.start_reduce(*program_, bucket.range, static_cast<std::byte*>(slices_[bucket.group].data_ptr()));
}

std::vector<double> StepExchange::losses_and_squares(const MicroBatchSums& sums) {
  const auto num_blocks = [this](std::size_t g) {
    return slices_[g].numel() / state_.groups()[g].layout.block_elements;
  };
  if (state_.device().is_cpu()) {
    std::vector<double> numbers;
    for (const at::Tensor& loss : sums.losses) numbers.push_back(loss.item<double>());
    for (std::size_t g = 0; g < slices_.size(); ++g)
      for (const double sum :
           block_squares_on_host(slices_[g], num_blocks(g), state_.groups()[g].layout.block_elements))
        numbers.push_back(sum);
    return numbers;
  }
  std::vector<at::Tensor> on_device;
  if (!sums.losses.empty()) on_device.push_back(at::stack(sums.losses).to(at::kDouble));
  for (std::size_t g = 0; g < slices_.size(); ++g)
    on_device.push_back(block_squares_on_device(slices_[g], num_blocks(g), state_.groups()[g].layout.block_elements));
  communicator_.wait_for_device();
  const at::Tensor numbers = at::cat(on_device).cpu();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

StepExchange::Numbers StepExchange::fetch(const MicroBatchSums& sums) {
  const std::vector<double> all = losses_and_squares(sums);
  auto next = all.begin();
  const auto take = [&next](std::int64_t count) {
    const auto first = next;
    next += count;
    return std::vector<double>(first, next);
  };
  Numbers numbers;
  numbers.losses = take(static_cast<std::int64_t>(sums.losses.size()));
  for (std::size_t g = 0; g < slices_.size(); ++g) {
    const FlatGroup& group = state_.groups()[g];
    const std::int64_t num_parameter_blocks = group.parameter_slice().size() / group.layout.block_elements;
    numbers.squares.push_back(take(num_parameter_blocks));
    // Of the buffers' blocks only this is asked.
    for (const double sum : take(slices_[g].numel() / group.layout.block_elements - num_parameter_blocks))
      numbers.buffers_finite &= std::isfinite(sum);
  }
  return numbers;
}

StepTotals StepExchange::reduce(const BatchPlan& plan, const StepPlan& step, const MicroBatchSums& sums,
                                double loss_scale, const StepFlags& flags) {
  const TreeProgram& program = *program_;
  while (num_started_ < buckets_.buckets().size()) start(buckets_.buckets()[num_started_]);
  for (std::size_t g = 0; g < slices_.size(); ++g)
    state_.groups()[g].exchange->reduce_slice(program, static_cast<std::byte*>(slices_[g].data_ptr()));
  const Numbers numbers = fetch(sums);

  Header mine;
  mine.failed = sums.failure.has_value();
  mine.stop = flags.stop;
  mine.save = flags.save;
  mine.save_durable = flags.save_durable;
  mine.loss_kind = static_cast<std::int64_t>(sums.loss_kind);
  mine.buffers_finite = numbers.buffers_finite;
  mine.sample_mark = sums.sample_mark;

  NodeSums loss_nodes(step.num_micro_batches, sums.share);
  NodeSums weight_nodes(step.num_micro_batches, sums.share);
  const bool is_weighted = sums.loss_kind == MicroBatchSums::LossKind::weighted;
  for (std::size_t i = 0; i < numbers.losses.size(); ++i) {
    loss_nodes.add(is_weighted ? numbers.losses[i] : numbers.losses[i] * sums.weights[i]);
    weight_nodes.add(sums.weights[i]);
  }
  std::vector<std::vector<double>> norm_nodes;
  for (std::size_t g = 0; g < slices_.size(); ++g) {
    const FlatGroup& group = state_.groups()[g];
    NodeSums squares(group.parameter_blocks,
                     parameter_blocks_of(group, communicator_.num_ranks(), communicator_.rank()));
    for (const double of_block : numbers.squares[g]) squares.add(of_block);
    norm_nodes.push_back(squares.values());
  }

  std::vector<std::byte> message;
  append(message, &mine, sizeof mine);
  append(message, sums.counter_counts);
  append(message, loss_nodes.values());
  append(message, weight_nodes.values());
  for (const std::vector<double>& nodes : norm_nodes) append(message, nodes);

  const auto num_counters = static_cast<int>(sums.counter_counts.size());
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (int rank = 0; rank < communicator_.num_ranks(); ++rank) {
    int num_doubles = num_counters + 2 * program.nodes_of_rank[static_cast<std::size_t>(rank)];
    for (const TreeProgram& norm : norm_programs_) num_doubles += norm.nodes_of_rank[static_cast<std::size_t>(rank)];
    counts.push_back(sizeof(Header) + static_cast<std::size_t>(num_doubles) * sizeof(double));
    total += counts.back();
  }
  std::vector<std::byte> all(total);
  communicator_.all_gather(message, counts, all);

  StepTotals totals;
  totals.counter_counts.assign(sums.counter_counts.size(), 0.0);
  totals.flags.save_durable = true;
  std::vector<double> losses;
  std::vector<double> weights;
  std::vector<std::vector<double>> norms(norm_programs_.size());
  bool failed = false;
  std::int64_t loss_kind = 0;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    Taker taker(std::span<const std::byte>(all).subspan(begin, counts[rank]));
    begin += counts[rank];
    const Header header = taker.header();
    failed = failed || header.failed != 0;
    if (header.loss_kind != 0 && loss_kind != 0 && header.loss_kind != loss_kind) failed = true;
    if (header.loss_kind != 0) loss_kind = header.loss_kind;
    totals.flags.stop |= header.stop != 0;
    totals.flags.save |= header.save != 0;
    totals.flags.save_durable &= header.save_durable != 0;
    totals.finite &= header.buffers_finite != 0;
    totals.sample_mark += header.sample_mark;
    std::vector<double> counters;
    taker.doubles(num_counters, counters);
    for (std::size_t i = 0; i < counters.size(); ++i)
      totals.counter_counts[i] = std::max(totals.counter_counts[i], counters[i]);
    taker.doubles(program.nodes_of_rank[rank], losses);
    taker.doubles(program.nodes_of_rank[rank], weights);
    for (std::size_t g = 0; g < norms.size(); ++g) taker.doubles(norm_programs_[g].nodes_of_rank[rank], norms[g]);
  }
  if (failed)
    agree(communicator_, [&] {
      if (sums.failure) throw *sums.failure;
      if (loss_kind != static_cast<std::int64_t>(sums.loss_kind) && sums.loss_kind != MicroBatchSums::LossKind::none)
        throw Error(ErrorKind::do_not_requeue,
                    "the loss function gave a mean on one rank and a weighted sum on another (they cannot be added "
                    "up): always return the same kind");
    });

  const double weight = program.evaluate(weights);
  const bool weighted = loss_kind == static_cast<std::int64_t>(MicroBatchSums::LossKind::weighted);
  totals.loss = weight == 0.0 ? 0.0 : program.evaluate(losses) / weight;
  totals.loss_finite = std::isfinite(totals.loss);
  totals.buffer_factor = static_cast<double>(plan.micro_batch_size) / static_cast<double>(step.num_samples);
  const double mean_factor = weighted ? (weight == 0.0 ? 0.0 : 1.0 / weight) : totals.buffer_factor;
  totals.gradient_factor = mean_factor / loss_scale;
  double squares = 0.0;
  for (std::size_t g = 0; g < norms.size(); ++g) squares += norm_programs_[g].evaluate(norms[g]);
  totals.gradient_norm = std::sqrt(squares) * totals.gradient_factor;
  totals.finite = totals.finite && std::isfinite(squares) && totals.loss_finite;
  return totals;
}

}  // namespace lockstep
