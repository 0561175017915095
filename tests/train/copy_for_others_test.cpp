#include "runtime/train/copy_for_others.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep::test {
namespace {

/// LibTorch's threads as they were, when the test is over.
class NumThreads {
 public:
  explicit NumThreads(int count) { at::set_num_threads(count); }
  ~NumThreads() { at::set_num_threads(before_); }
  NumThreads(const NumThreads&) = delete;
  NumThreads& operator=(const NumThreads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

TEST(CopyForOthers, CopiesAllWhateverIsKept) {
  for (const int num_threads : {1, 3}) {
    const NumThreads threads(num_threads);
    for (const std::int64_t size : {0, 1, 7, 1000, 100'003})
      for (const Slice kept : {Slice{}, Slice{0, size}, Slice{size / 3, size / 2}, Slice{-50, 1}, Slice{-9, -3},
                               Slice{size - 1, size + 70'000}, Slice{size + 5, size + 9}})
        for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
          const at::Tensor from = at::arange(1, size + 1, type);
          const at::Tensor to = at::zeros({size}, type);
          copy_for_others(from, to, kept);
          EXPECT_TRUE(at::equal(from, to)) << size << " elements, kept from " << kept.begin << " to " << kept.end;
        }
  }
}

}  // namespace
}  // namespace lockstep::test
