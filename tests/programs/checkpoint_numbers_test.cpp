#include "drivers/checkpoint_numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <vector>

#include "drivers/checkpoint_table.hpp"
#include "runtime/plan/shape_text.hpp"

namespace lockstep {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
TensorSummary summarise(ElementType type, const std::vector<T>& values) {
  SummaryBuilder builder(type);
  builder.add(bytes_of(values));
  return builder.summary();
}

double value_of_half(std::uint16_t bits) {
  return summarise(ElementType::float16, std::vector<std::uint16_t>{bits}).max;
}

TEST(CheckpointNumbers, ReadHalfPrecisionExactly) {
  EXPECT_EQ(value_of_half(0x0000), 0.0);
  EXPECT_EQ(value_of_half(0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(value_of_half(0x03ff), std::ldexp(1023.0, -24));
  EXPECT_EQ(value_of_half(0x0400), std::ldexp(1.0, -14));
  EXPECT_EQ(value_of_half(0x3c00), 1.0);
  EXPECT_EQ(value_of_half(0x3555), 0.333251953125);
  EXPECT_EQ(value_of_half(0x7bff), 65504.0);
  EXPECT_EQ(value_of_half(0xfbff), -65504.0);
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    ASSERT_LT(value_of_half(bits), value_of_half(static_cast<std::uint16_t>(bits + 1))) << bits;
  }
  EXPECT_EQ(
      summarise(ElementType::float16, std::vector<std::uint16_t>{0x7c00, 0xfc00, 0x7e00, 0x7c01}).num_not_finite, 4);
}

TEST(CheckpointNumbers, ReadBrainFloatsAsTheUpperHalfOfFloats) {
  const auto summary = summarise(ElementType::bfloat16, std::vector<std::uint16_t>{0x3f80, 0xc040, 0x7f80, 0x0001});
  EXPECT_EQ(summary.max, 1.0);
  EXPECT_EQ(summary.min, -3.0);
  EXPECT_EQ(summary.num_not_finite, 1);
  EXPECT_EQ(summary.num_elements, 4);
}

TEST(CheckpointNumbers, SumUpTheSameInAnyPieces) {
  const std::vector<float> values{3, -1, std::nanf(""), 4, 0, -12, std::numeric_limits<float>::infinity()};
  for (std::size_t cut = 0; cut <= values.size(); ++cut) {
    SummaryBuilder builder(ElementType::float32);
    builder.add(bytes_of(values).first(cut * sizeof(float)));
    builder.add(bytes_of(values).subspan(cut * sizeof(float)));
    const TensorSummary summary = builder.summary();
    EXPECT_EQ(summary.num_elements, 7);
    EXPECT_EQ(summary.num_not_finite, 2);
    EXPECT_EQ(summary.min, -12.0);
    EXPECT_EQ(summary.max, 4.0);
    EXPECT_DOUBLE_EQ(summary.norm, std::sqrt(170.0));
  }
}

TEST(CheckpointNumbers, FindTheSmallestBehindValuesThatAreNotFinite) {
  const auto summary = summarise(ElementType::float64, std::vector<double>{std::nan(""), 5.0, 7.0});
  EXPECT_EQ(summary.min, 5.0);
  EXPECT_EQ(summary.max, 7.0);
}

TEST(CheckpointNumbers, ReadIntegersWithTheirSigns) {
  EXPECT_EQ(summarise(ElementType::int8, std::vector<std::int8_t>{-128, 127}).min, -128.0);
  EXPECT_EQ(summarise(ElementType::uint8, std::vector<std::uint8_t>{200, 1}).max, 200.0);
  EXPECT_EQ(summarise(ElementType::int16, std::vector<std::int16_t>{-300, 1}).min, -300.0);
  EXPECT_EQ(summarise(ElementType::int64, std::vector<std::int64_t>{-(std::int64_t{1} << 40), 1}).min, -0x1p40);
}

TEST(CheckpointNumbers, CompareBitsAndMeasureDistances) {
  const std::vector<double> left{1.0, 0.0, std::nan(""), 2.0};
  std::vector<double> right{1.0, -0.0, std::nan(""), 5.0};
  DifferenceBuilder builder(ElementType::float64);
  builder.add(bytes_of(left).first(16), bytes_of(right).first(16));
  builder.add(bytes_of(left).subspan(16), bytes_of(right).subspan(16));
  const TensorDifference difference = builder.difference();
  EXPECT_EQ(difference.num_elements, 4);
  EXPECT_EQ(difference.num_different, 2);
  EXPECT_EQ(difference.first_different, 1);
  EXPECT_EQ(difference.largest, 3.0);
  EXPECT_EQ(difference.norm, 3.0);
  right[2] = 1.0;
  DifferenceBuilder not_a_number(ElementType::float64);
  not_a_number.add(bytes_of(left), bytes_of(right));
  EXPECT_TRUE(std::isnan(not_a_number.difference().largest));
  DifferenceBuilder same(ElementType::float64);
  same.add(bytes_of(left), bytes_of(left));
  EXPECT_TRUE(same.difference().equal());
}

TEST(CheckpointTable, AlignsColumnsByCharacters) {
  AlignedTable table({{"name", Side::left}, {"count", Side::right}, {"", Side::left}});
  table.add({"ümläut", "7", ""});
  table.add({"x", "1,234,567", "odd"});
  EXPECT_EQ(table.text(),
            "  name        count\n"
            "  ümläut          7\n"
            "  x       1,234,567  odd\n");
}

TEST(CheckpointTable, WritesNumbersForPeople) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(-1234), "-1,234");
  EXPECT_EQ(count_text(-123), "-123");
  EXPECT_EQ(count_text(1234567), "1,234,567");
  EXPECT_EQ(bytes_text(999), "999 bytes");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999960), "1.0 MB");
  EXPECT_EQ(bytes_text(4831838208), "4.8 GB");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{}), "[]");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{2, 3}), "[2, 3]");
  EXPECT_EQ(value_text(0.1), "0.1");
  EXPECT_EQ(value_text(std::vector<std::int64_t>{1, 2, 3}, 2), "1, 2, ... (3 in all)");
  EXPECT_EQ(value_text(std::vector<std::string>{}), "none");
}

}  // namespace
}  // namespace lockstep
