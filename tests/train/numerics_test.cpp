#include "runtime/train/numerics.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>

namespace lockstep::test {
namespace {

std::string subnormals() {
  return std::get<std::string>(numerics_of(Precision::fp32, c10::Device(at::kCPU)).at("subnormals"));
}

/// Of what LibTorch's kernels make of subnormal products.
bool a_tensor_is_zero() {
  const at::Tensor halves = at::full({64}, std::numeric_limits<float>::min()).mul(0.5);
  return halves.mul(1e20).eq(0).all().item<bool>();
}

TEST(Numerics, AThreadAndThoseItStartsFlushSubnormalsAndNoOther) {
  std::thread([] {
    EXPECT_EQ(subnormals(), "kept");
    EXPECT_FALSE(a_tensor_is_zero());
    flush_subnormals();
    EXPECT_EQ(subnormals(), "flushed");
    EXPECT_TRUE(a_tensor_is_zero());
    std::thread([] { EXPECT_EQ(subnormals(), "flushed"); }).join();
  }).join();
  EXPECT_EQ(subnormals(), "kept");
  EXPECT_FALSE(a_tensor_is_zero());
}

TEST(Numerics, ADifferenceFromTheCheckpointIsTold) {
  AttributeGroup today = numerics_of(Precision::fp32, c10::Device(at::kCPU));
  const AttributeTree stored = {{"numerics", today}};
  EXPECT_TRUE(numerics_notes(stored, today).empty());
  AttributeTree of_earlier_version = stored;
  of_earlier_version["numerics"].erase("subnormals");
  EXPECT_TRUE(numerics_notes(of_earlier_version, today).empty());
  today["subnormals"] = std::string("flushed");
  for (const AttributeTree& tree : {stored, of_earlier_version}) {
    const std::vector<std::string> notes = numerics_notes(tree, today);
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_EQ(notes.front().find("subnormals was kept, is flushed"), 0U) << notes.front();
  }
}

}  // namespace
}  // namespace lockstep::test
