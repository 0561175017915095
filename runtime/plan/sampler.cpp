#include "runtime/plan/sampler.hpp"

#include <bit>
#include <cassert>

namespace lockstep {

std::uint64_t mix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

EpochOrder::EpochOrder(ShuffleKind kind, std::uint64_t seed, std::int64_t epoch, std::int64_t num_samples,
                       std::int64_t shard)
    : num_samples_(num_samples), shuffled_(kind == ShuffleKind::permutation && num_samples > 1) {
  if (!shuffled_) return;
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(num_samples - 1)));
  low_bits_ = (bits + 1) / 2;
  low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
  high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
  std::uint64_t key =
      mix64(mix64(mix64(seed) ^ static_cast<std::uint64_t>(epoch)) + static_cast<std::uint64_t>(shard));
  for (std::uint64_t& round_key : keys_) round_key = key = mix64(key);
}

std::int64_t EpochOrder::operator[](std::int64_t position) const {
  assert(position >= 0 && position < num_samples_);
  if (!shuffled_) return position;
  std::uint64_t value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t low = value & low_mask_;
    std::uint64_t high = value >> low_bits_;
    for (int round = 0; round < num_rounds; round += 2) {
      high ^= mix64(low ^ keys_[static_cast<std::size_t>(round)]) & high_mask_;
      low ^= mix64(high ^ keys_[static_cast<std::size_t>(round) + 1]) & low_mask_;
    }
    value = high << low_bits_ | low;
  } while (value >= static_cast<std::uint64_t>(num_samples_));
  return static_cast<std::int64_t>(value);
}

void fill_sample_ids(const BatchPlan& batch, ShuffleKind kind, std::uint64_t seed, std::int64_t epoch,
                     std::int64_t first, std::span<std::int64_t> ids) {
  if (!batch.has_length()) {
    for (std::int64_t& id : ids) id = first++;
    return;
  }
  if (!batch.is_sharded()) {
    const EpochOrder order(kind, seed, epoch, batch.num_samples);
    for (std::int64_t& id : ids) id = order[first++];
    return;
  }
  std::int64_t offset = 0;
  std::size_t filled = 0;
  for (std::size_t rank = 0; rank < batch.samples_of_rank.size() && filled < ids.size(); ++rank) {
    const std::int64_t own = batch.samples_of_rank[rank];
    const EpochOrder order(kind, seed, epoch, own, static_cast<std::int64_t>(rank) + 1);
    for (; filled < ids.size() && first < offset + own; ++first) ids[filled++] = offset + order[first - offset];
    offset += own;
  }
}

}  // namespace lockstep
