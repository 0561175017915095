#include "runtime/plan/copy_past_caches.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace lockstep {
namespace {

TEST(CopyPastCaches, CopiesEveryByteAndNoOther) {
  constexpr std::size_t most_bytes = 100;
  constexpr std::size_t margin = 40;
  constexpr std::byte untouched{0xEE};
  std::vector<std::byte> source(margin + most_bytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i);

  for (std::size_t from = 0; from < 3; ++from)
    for (std::size_t to = 0; to < margin; ++to)
      for (std::size_t count = 0; count <= most_bytes; ++count) {
        std::vector<std::byte> target(margin + most_bytes + margin, untouched);
        copy_past_caches(target.data() + to, {source.data() + from, count});
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool is_copied = i >= to && i < to + count;
          ASSERT_EQ(target[i], is_copied ? source[from + i - to] : untouched)
              << "byte " << i << " of " << count << " from " << from << " to " << to;
        }
      }
}

TEST(CopyPastCaches, NothingMayComeFromNowhere) { copy_past_caches(nullptr, {}); }

}  // namespace
}  // namespace lockstep
