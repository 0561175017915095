#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/communicator.hpp"

namespace lockstep::test {

/// What the ranks of an EarlyStart communicator did in a step, in words: "[8, 24) [0, 8) reduce".
using StartLog = std::vector<std::string>;

/// Holds an exchange to the contract of early transfers: what is started is whole and stays as it is, and it covers
/// the flat state. The sums are those of the exchange below.
class EarlyStartExchange final : public FlatExchange {
 public:
  EarlyStartExchange(std::unique_ptr<FlatExchange> below, const FlatLayout& layout, int rank, StartLog& log)
      : below_(std::move(below)), layout_(layout), rank_(rank), log_(log) {}

  Slice slice() const override { return below_->slice(); }
  std::byte* weights() override { return below_->weights(); }
  std::byte* gradient_slot(int slot) override { return below_->gradient_slot(slot); }
  bool overlaps() const override { return true; }

  void start_reduce(const TreeProgram& program, Slice range, std::byte* out) override {
    log_.push_back("[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")");
    started_.push_back({&program, range, out, bytes_of(program, range)});
    below_->start_reduce(program, range, out);
  }

  void reduce_slice(const TreeProgram& program, std::byte* out) override {
    log_.push_back("reduce");
    std::int64_t covered = 0;
    for (const Started& start : started_) {
      EXPECT_EQ(start.program, &program);
      EXPECT_EQ(start.out, out);
      EXPECT_EQ(start.bytes, bytes_of(program, start.range)) << "changed after its transfer had started";
      covered += start.range.size();
    }
    EXPECT_EQ(covered, layout_.num_elements());
    started_.clear();
    below_->reduce_slice(program, out);
  }

  void publish_weights() override { below_->publish_weights(); }

 private:
  struct Started {
    const TreeProgram* program;
    Slice range;
    std::byte* out;
    std::vector<std::byte> bytes;
  };

  /// What this rank brings in `range`.
  std::vector<std::byte> bytes_of(const TreeProgram& program, Slice range) {
    std::vector<std::byte> bytes;
    for (int slot = 0; slot < program.nodes_of_rank[static_cast<std::size_t>(rank_)]; ++slot) {
      const std::byte* flat = gradient_slot(slot);
      bytes.insert(bytes.end(), flat + static_cast<std::size_t>(range.begin) * size_of(layout_.type),
                   flat + static_cast<std::size_t>(range.end) * size_of(layout_.type));
    }
    return bytes;
  }

  std::unique_ptr<FlatExchange> below_;
  FlatLayout layout_;
  int rank_;
  StartLog& log_;
  std::vector<Started> started_;
};

/// A communicator whose exchanges take transfers early. The one below must outlive it; it may be that of a device in
/// host memory, which then passes for the host.
class EarlyStart final : public Communicator {
 public:
  explicit EarlyStart(Communicator& below) : below_(below) {}

  int rank() const override { return below_.rank(); }
  int num_ranks() const override { return below_.num_ranks(); }
  int local_rank() const override { return below_.local_rank(); }
  std::string name() const override { return below_.name() + ", started early"; }
  void barrier() override { below_.barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { below_.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override {
    below_.all_gather(mine, counts, all);
  }
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override {
    return std::make_unique<EarlyStartExchange>(below_.make_exchange(layout), layout, rank(), log_);
  }

  StartLog& log() { return log_; }

 private:
  Communicator& below_;
  StartLog log_;
};

}  // namespace lockstep::test
