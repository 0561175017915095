#include "runtime/train/step_scalars.hpp"

#include <algorithm>
#include <bit>

namespace lockstep {
namespace {

/// Scalars as they travel: words of 64 bits.
using Words = std::vector<std::uint64_t>;

constexpr std::size_t num_single_words = 7;

void put(Words& words, const std::vector<double>& numbers) {
  for (const double number : numbers) words.push_back(std::bit_cast<std::uint64_t>(number));
}

Words pack(const StepScalars& scalars) {
  Words words = {scalars.has_failed,
                 scalars.flags.stop,
                 scalars.flags.save,
                 scalars.flags.save_durable,
                 static_cast<std::uint64_t>(scalars.loss_kind),
                 scalars.buffers_finite,
                 scalars.sample_mark};
  put(words, scalars.counter_counts);
  put(words, scalars.losses);
  put(words, scalars.weights);
  for (const std::vector<double>& of_group : scalars.squares) put(words, of_group);
  return words;
}

/// Takes words off the front of a message.
class Taker {
 public:
  explicit Taker(std::span<const std::uint64_t> words) : next_(words.begin()) {}

  std::uint64_t word() { return *next_++; }
  bool flag() { return word() != 0; }
  double number() { return std::bit_cast<double>(word()); }
  void append_to(std::vector<double>& numbers, int count) {
    for (int i = 0; i < count; ++i) numbers.push_back(number());
  }

 private:
  std::span<const std::uint64_t>::iterator next_;
};

}  // namespace

StepScalars combine_scalars(Communicator& communicator, const StepScalars& mine, const TreeProgram& program,
                            std::span<const TreeProgram> norm_programs) {
  const auto num_ranks = static_cast<std::size_t>(communicator.num_ranks());
  std::vector<std::size_t> num_words;
  std::vector<std::size_t> num_bytes;
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    int num_nodes = 2 * program.nodes_of_rank[rank];
    for (const TreeProgram& norm : norm_programs) num_nodes += norm.nodes_of_rank[rank];
    num_words.push_back(num_single_words + mine.counter_counts.size() + static_cast<std::size_t>(num_nodes));
    num_bytes.push_back(num_words.back() * sizeof(std::uint64_t));
    total += num_words.back();
  }
  const Words message = pack(mine);
  Words all(total);
  communicator.all_gather(std::as_bytes(std::span(message)), num_bytes, std::as_writable_bytes(std::span(all)));

  StepScalars together;
  together.flags.save_durable = true;
  together.counter_counts.assign(mine.counter_counts.size(), 0.0);
  together.squares.resize(norm_programs.size());
  std::span<const std::uint64_t> rest(all);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    Taker from(rest.first(num_words[rank]));
    rest = rest.subspan(num_words[rank]);
    together.has_failed |= from.flag();
    together.flags.stop |= from.flag();
    together.flags.save |= from.flag();
    together.flags.save_durable &= from.flag();
    const auto kind = static_cast<LossKind>(from.word());
    if (kind != LossKind::none) {
      together.has_failed |= together.loss_kind != LossKind::none && together.loss_kind != kind;
      together.loss_kind = kind;
    }
    together.buffers_finite &= from.flag();
    together.sample_mark += from.word();
    for (double& count : together.counter_counts) count = std::max(count, from.number());
    from.append_to(together.losses, program.nodes_of_rank[rank]);
    from.append_to(together.weights, program.nodes_of_rank[rank]);
    for (std::size_t g = 0; g < norm_programs.size(); ++g)
      from.append_to(together.squares[g], norm_programs[g].nodes_of_rank[rank]);
  }
  return together;
}

}  // namespace lockstep
