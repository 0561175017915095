#include "runtime/plan/loss_scaler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

LossScalerOptions fp16_options() {
  LossScalerOptions options;
  options.enabled = true;
  return options;
}

AttributeTree tree_of(const LossScaler& scaler) { return {{"loss_scaler", scaler.to_attributes()}}; }

TEST(Cases, C037SkippedUpdatesBackOffOnceEach) {
  LossScaler scaler(fp16_options());
  for (int attempt = 0; attempt < 10; ++attempt) scaler.update(attempt == 3 || attempt == 4);
  EXPECT_EQ(scaler.num_overflows(), 2);
  EXPECT_EQ(scaler.scale(), 16384.0f);
}

TEST(Cases, C038ScaleTrace) {
  LossScalerOptions options = fp16_options();
  options.growth_interval = 4;
  LossScaler scaler(options);
  const std::vector<float> scales{65536, 65536,  32768, 32768, 32768, 32768, 65536, 65536, 65536,
                                  65536, 131072, 65536, 32768, 32768, 32768, 32768, 65536};
  const std::vector<int> trackers{1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 0};
  for (std::size_t update = 0; update < scales.size(); ++update) {
    scaler.update(update == 2 || update == 11 || update == 12);
    EXPECT_EQ(scaler.scale(), scales[update]) << update;
    EXPECT_EQ(scaler.growth_tracker(), trackers[update]) << update;
  }
  EXPECT_EQ(scaler.num_overflows(), 3);
}

TEST(Cases, C039ScalerStateInTheCheckpoint) {
  LossScalerOptions options = fp16_options();
  options.init_scale = 1024.0;
  options.growth_interval = 10;
  LossScaler scaler(options);
  for (int update = 0; update < 7; ++update) scaler.update(false);
  const AttributeTree stored = tree_of(scaler);

  options.init_scale = 65536.0;
  LossScaler again = LossScaler::resumed(options, stored);
  EXPECT_EQ(again.scale(), 1024.0f);
  EXPECT_EQ(again.growth_tracker(), 7);
  const std::vector<float> scales{1024, 1024, 2048, 2048, 2048};
  for (const float scale : scales) {
    again.update(false);
    EXPECT_EQ(again.scale(), scale);
  }
}

TEST(Cases, C044ScaleCollapse) {
  LossScalerOptions options = fp16_options();
  options.min_scale = 0.0;
  LossScaler scaler(options);
  std::vector<float> scales;
  for (int update = 0; update < 170; ++update) {
    scaler.update(true);
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales[0], 32768.0f);
  EXPECT_EQ(scales[15], 1.0f);
  EXPECT_EQ(scales[16], 0.5f);
  EXPECT_EQ(scales[141], 1.1754943508222875e-38f);
  EXPECT_EQ(scales[142], 5.877471754111438e-39f);
  EXPECT_EQ(scales[164], 1.401298464324817e-45f);
  EXPECT_EQ(scales[165], 0.0f);

  LossScaler floored(fp16_options());
  int overflows = 0;
  while (!floored.at_minimum()) {
    floored.update(true);
    ++overflows;
  }
  EXPECT_EQ(overflows, 16);
  EXPECT_EQ(floored.scale(), 1.0f);
}

TEST(LossScaler, NeverGrowsToInfinity) {
  LossScalerOptions options = fp16_options();
  options.init_scale = 1.7014118346046923e38;
  options.max_scale = 3.4e38;
  options.growth_interval = 1;
  LossScaler scaler(options);
  for (int update = 0; update < 4; ++update) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1.7014118346046923e38f);
}

TEST(LossScaler, StaysBetweenItsLimits) {
  LossScalerOptions options = fp16_options();
  options.growth_interval = 1;
  options.min_scale = 256.0;
  options.max_scale = 100000.0;
  LossScaler scaler(options);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 100000.0f);
  for (int update = 0; update < 20; ++update) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 256.0f);
  EXPECT_TRUE(scaler.at_minimum());
}

TEST(LossScaler, BacksOffAfterAsManyOverflowsInARowAsTheHysteresisSays) {
  LossScalerOptions options = fp16_options();
  options.hysteresis = 2;
  LossScaler scaler(options);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
  scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
  LossScaler resumed = LossScaler::resumed(options, tree_of(scaler));
  resumed.update(true);
  EXPECT_EQ(resumed.scale(), 32768.0f);
}

TEST(LossScaler, AStaticScaleNeverMoves) {
  LossScalerOptions options = fp16_options();
  options.is_static = true;
  options.growth_interval = 1;
  options.init_scale = 128.0;
  LossScaler scaler(options);
  scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 128.0f);
  EXPECT_TRUE(scaler.at_minimum());
  EXPECT_EQ(scaler.num_overflows(), 1);
}

TEST(LossScaler, IsRestoredExactly) {
  LossScalerOptions options = fp16_options();
  options.backoff_factor = 0.7;
  options.growth_factor = 1.1;
  options.growth_interval = 3;
  LossScaler scaler(options);
  for (int update = 0; update < 50; ++update) scaler.update(update % 7 == 3);
  LossScaler restored = LossScaler::from(tree_of(scaler));
  EXPECT_EQ(restored.to_attributes(), scaler.to_attributes());
  for (int update = 0; update < 20; ++update) {
    scaler.update(update == 5);
    restored.update(update == 5);
    EXPECT_EQ(restored.scale(), scaler.scale());
  }
}

TEST(LossScaler, ChangedOptionsCountAndAShorterIntervalIsNotMissed) {
  LossScaler scaler(fp16_options());
  for (int update = 0; update < 100; ++update) scaler.update(false);
  LossScalerOptions options = fp16_options();
  options.growth_interval = 50;
  LossScaler resumed = LossScaler::resumed(options, tree_of(scaler));
  resumed.update(false);
  EXPECT_EQ(resumed.scale(), 131072.0f);
}

TEST(LossScaler, ARunThatChangesToFp16StartsAtTheInitialScale) {
  const LossScaler fp32{LossScalerOptions{}};
  EXPECT_EQ(fp32.scale(), 1.0f);
  EXPECT_EQ(LossScaler::resumed(fp16_options(), tree_of(fp32)).scale(), 65536.0f);
  EXPECT_EQ(LossScaler::resumed(fp16_options(), {}).scale(), 65536.0f);
}

TEST(LossScaler, RefusesContradictingOptionsWithTheNumbers) {
  LossScalerOptions options = fp16_options();
  options.init_scale = 0.5;
  try {
    LossScaler scaler(options);
    FAIL() << "a scale below its minimum was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("0.5"), std::string::npos);
  }
  options = fp16_options();
  options.backoff_factor = 1.5;
  EXPECT_THROW(LossScaler{options}, Error);
  options = fp16_options();
  options.growth_interval = 0;
  EXPECT_THROW(LossScaler{options}, Error);
}

}  // namespace
}  // namespace lockstep
