// Sizes at which 32-bit counts and single transfers break. Slow; skips itself where memory or disk are too small.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/checkpoint_reader.hpp"
#include "tests/io/checkpoint_fixture.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t piece_elements = std::int64_t{1} << 22;

std::uint32_t value_at(std::int64_t index) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(index) * 2654435761u + 12345u);
}

// Bytes that programs may still take, the page cache given up.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::uint64_t kilobytes = 0;
  while (file >> word && word != "MemAvailable:") {
  }
  file >> kilobytes;
  return kilobytes * 1024;
}

class Cases : public test::CheckpointTest, public ::testing::WithParamInterface<WriterKind> {
 protected:
  /// **Collective.** True when there is room for a state of `bytes`, in memory and on the disk.
  bool has_room(std::uint64_t bytes) {
    const bool has = available_memory() > bytes + bytes / 2 && free_bytes(folder_) > 2 * bytes;
    return broadcast_text(*communicator_, has ? "yes" : "no") == "yes";
  }

  /// **Collective.** Saves a tensor, each rank its rows, and reads back a part of another cut, to the last element.
  void expect_round_trip(const std::vector<std::int64_t>& shape, std::int64_t my_begin, std::int64_t my_end,
                         std::int64_t block_elements) {
    TensorPart part;
    part.info = {"weights", "w", ElementType::float32, shape};
    if (!has_room(static_cast<std::uint64_t>(part.info.num_elements()) * 4)) {
      GTEST_SKIP() << "needs more memory or disk";
    }
    part.begin = my_begin;
    part.end = my_end;
    part.block_elements = block_elements;
    {
      std::vector<std::uint32_t> mine(static_cast<std::size_t>(my_end - my_begin));
      for (std::int64_t i = my_begin; i < my_end; ++i) mine[static_cast<std::size_t>(i - my_begin)] = value_at(i);
      part.data = reinterpret_cast<std::byte*>(mine.data());
      Snapshot snapshot;
      snapshot.step = 1;
      snapshot.tensors.push_back(part);
      CheckpointDirectory(*communicator_, options(GetParam())).start_save(snapshot);
    }
    const auto reader = open_checkpoint(*communicator_, path_of(1));
    std::vector<std::uint32_t> piece(piece_elements);
    std::int64_t num_wrong = 0;
    // Pieces in turn to the ranks, so that nobody reads what it wrote alone; every rank makes as many calls.
    const std::int64_t per_round = piece_elements * communicator_->num_ranks();
    for (std::int64_t round = 0; round < part.info.num_elements(); round += per_round) {
      part.begin = std::min(round + piece_elements * communicator_->rank(), part.info.num_elements());
      part.end = std::min(part.begin + piece_elements, part.info.num_elements());
      part.data = reinterpret_cast<std::byte*>(piece.data());
      reader->read(std::span(&part, 1));
      for (std::int64_t i = part.begin; i < part.end; ++i) {
        if (piece[static_cast<std::size_t>(i - part.begin)] != value_at(i)) ++num_wrong;
      }
    }
    EXPECT_EQ(num_wrong, 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Writers, Cases, ::testing::Values(WriterKind::direct, WriterKind::collective),
                         [](const auto& info) { return info.param == WriterKind::direct ? "Direct" : "Collective"; });

TEST_P(Cases, C068SizesAround2And4GiB) {
  const int num_ranks = communicator_->num_ranks();
  if (num_ranks == 1) {
    for (const std::int64_t size : {536870911, 536870912, 536870913, 1073741825}) {
      expect_round_trip({size}, 0, size, 1 << 18);
    }
    return;
  }
  // As many elements for each rank.
  const std::int64_t each = 536870913;
  expect_round_trip({each * num_ranks}, each * communicator_->rank(), each * (communicator_->rank() + 1), each);
}

TEST_P(Cases, C068RowsThatBeginBehind2GiB) {
  const std::int64_t columns = 32769;
  const std::int64_t rows = 65536;
  const std::int64_t ranks = communicator_->num_ranks();
  const std::int64_t rank = communicator_->rank();
  expect_round_trip({rows, columns}, rows * rank / ranks * columns, rows * (rank + 1) / ranks * columns, columns);
}

}  // namespace
}  // namespace lockstep
