#include "runtime/plan/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "runtime/plan/error.hpp"
#include "runtime/plan/option_names.hpp"
#include "runtime/plan/plateau.hpp"

namespace lockstep {
namespace {

void set_option(ScheduleOptions& options, const std::string& name, const std::string& value) {
  if (name == "num_cycles") {
    options.num_cycles = std::stod(value);
  } else if (name == "power") {
    options.power = std::stod(value);
  } else if (name == "lr_end") {
    options.lr_end = std::stod(value);
  } else if (name == "min_lr") {
    options.min_lr = std::stod(value);
  } else if (name == "timescale") {
    options.timescale = std::stoll(value);
  } else if (name == "decay_steps") {
    options.decay_steps = std::stoll(value);
  } else if (name == "step_size") {
    options.step_size = std::stoll(value);
  } else if (name == "gamma") {
    options.gamma = std::stod(value);
  } else if (name == "milestones") {
    std::istringstream list(value);
    for (std::string item; std::getline(list, item, ',');) options.milestones.push_back(std::stoll(item));
  } else {
    ADD_FAILURE() << "unknown option " << name;
  }
}

TEST(LrSchedule, EqualsThePublicSchedulers) {
  std::ifstream file(LOCKSTEP_PLAN_TEST_DATA "/lr_tables.txt");
  std::map<ScheduleKind, int> num_tables;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    ScheduleOptions options;
    std::string kind;
    std::int64_t total = 0;
    std::int64_t warmup = 0;
    words >> kind >> total >> warmup >> options.learning_rate;
    options.kind = schedule_kind_from(kind);
    for (std::string word; words >> word && word != ":";) {
      set_option(options, word.substr(0, word.find('=')), word.substr(word.find('=') + 1));
    }
    const LrSchedule schedule(options, total, warmup);
    std::int64_t update = 0;
    for (double expected = 0.0; words >> expected; ++update) {
      const double rate = options.learning_rate * schedule.factor(static_cast<double>(update));
      EXPECT_NEAR(rate, expected, 1e-12 * expected) << line.substr(0, 60) << " update " << update;
    }
    EXPECT_EQ(update, total) << line.substr(0, 60);
    ++num_tables[options.kind];
  }
  int all = 0;
  for (const auto& [kind, count] : num_tables) all += count;
  EXPECT_EQ(all, 159);
  EXPECT_EQ(num_tables[ScheduleKind::polynomial], 36);
  EXPECT_EQ(num_tables.size(), 13u);
}

TEST(LrSchedule, IsFiniteForEveryInput) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    ScheduleOptions options;
    options.kind = kind;
    options.step_size = 3;
    options.min_lr = 1e-5;
    options.milestones = {2, 4};
    options.factors = {1.0, 0.5, 0.25};
    options.custom = [](double p, double total) { return total > 0.0 ? 1.0 - p / total : 1.0; };
    for (const std::int64_t total : {0, 1, 2, 3, 10, 1000}) {
      for (const std::int64_t warmup : {0, 1, 2, 9, 10, 11, 20, 5000}) {
        const LrSchedule schedule(options, total, warmup);
        for (double p = -1.0; p <= static_cast<double>(total) + 2.0; p += total > 100 ? 7.3 : 0.25) {
          const double factor = schedule.factor(p);
          EXPECT_TRUE(std::isfinite(factor) && factor >= 0.0 && factor <= 1.0 + 1e-12)
              << name_of(kind) << " T " << total << " W " << warmup << " p " << p << ": " << factor;
        }
      }
    }
  }
}

TEST(LrSchedule, PiecewiseConstantTakesItsFactorsInTurn) {
  ScheduleOptions options;
  options.kind = ScheduleKind::piecewise_constant;
  options.milestones = {10, 20, 30};
  options.factors = {1.0, 0.1, 0.01, 0.005};
  const LrSchedule schedule(options, 40, 0);
  EXPECT_EQ(schedule.factor(9.0), 1.0);
  EXPECT_EQ(schedule.factor(10.0), 0.1);
  EXPECT_EQ(schedule.factor(19.0), 0.1);
  EXPECT_EQ(schedule.factor(25.0), 0.01);
  EXPECT_EQ(schedule.factor(39.0), 0.005);
}

TEST(LrSchedule, ReduceOnPlateauEqualsPyTorch) {
  // factor 0.5, patience 2, cooldown 1, minimum 1e-3, threshold 1e-2, base rate 0.1: metric, rate after it.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<double, double>> trace{{nan, 0.1},
                                                     {0.999, 0.1},
                                                     {0.998001, 0.1},
                                                     {0.998001, 0.1},
                                                     {1.00798101, 0.05},
                                                     {0.907182909, 0.05},
                                                     {0.8164646181, 0.05},
                                                     {nan, 0.05},
                                                     {0.824629264281, 0.05},
                                                     {0.8238046350167191, 0.025},
                                                     {0.8229808303817023, 0.025},
                                                     {0.8312106386855194, 0.025},
                                                     {0.8395227450723746, 0.025},
                                                     {0.8479179725230983, 0.0125},
                                                     {nan, 0.0125},
                                                     {0.8462229844960246, 0.0125},
                                                     {0.8453767615115286, 0.0125},
                                                     {0.8538305291266439, 0.00625},
                                                     {0.7684474762139796, 0.00625},
                                                     {0.6916027285925817, 0.00625},
                                                     {0.6909111258639891, 0.00625},
                                                     {nan, 0.00625},
                                                     {0.6218200132775902, 0.00625},
                                                     {0.5596380119498312, 0.00625},
                                                     {0.5596380119498312, 0.00625},
                                                     {0.5652343920693296, 0.00625},
                                                     {0.5708867359900228, 0.003125},
                                                     {0.5765956033499231, 0.003125},
                                                     {nan, 0.003125},
                                                     {0.5881851749772566, 0.003125},
                                                     {0.5875969898022794, 0.0015625},
                                                     {0.5875969898022794, 0.0015625},
                                                     {0.5288372908220514, 0.0015625},
                                                     {0.4759535617398463, 0.0015625},
                                                     {0.47547760817810647, 0.0015625},
                                                     {nan, 0.0015625},
                                                     {0.47975215187562764, 0.001},
                                                     {0.47975215187562764, 0.001},
                                                     {0.48454967339438393, 0.001},
                                                     {0.48454967339438393, 0.001},
                                                     {0.4893951701283278, 0.001},
                                                     {0.49428912182961104, 0.001},
                                                     {nan, 0.001},
                                                     {0.49923201304790715, 0.001},
                                                     {0.49873278103485924, 0.001},
                                                     {0.49873278103485924, 0.001},
                                                     {0.44885950293137333, 0.001},
                                                     {0.44885950293137333, 0.001},
                                                     {0.44841064342844195, 0.001},
                                                     {nan, 0.001},
                                                     {0.40356957908559776, 0.001},
                                                     {0.40316600950651216, 0.001},
                                                     {0.40316600950651216, 0.001},
                                                     {0.40316600950651216, 0.001},
                                                     {0.36284940855586095, 0.001},
                                                     {0.32656446770027486, 0.001},
                                                     {nan, 0.001},
                                                     {0.3331284135010504, 0.001},
                                                     {0.29981557215094534, 0.001},
                                                     {0.29981557215094534, 0.001}};
  ScheduleOptions options;
  options.kind = ScheduleKind::reduce_on_plateau;
  options.learning_rate = 0.1;
  options.plateau_factor = 0.5;
  options.plateau_patience = 2;
  options.plateau_cooldown = 1;
  options.plateau_threshold = 1e-2;
  options.min_lr = 1e-3;
  PlateauTracker tracker;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    AttributeTree tree;
    tracker.store(tree["schedule"]);
    tracker = PlateauTracker::from(tree);  // as over a checkpoint
    tracker.observe(trace[i].first, options);
    EXPECT_NEAR(0.1 * tracker.factor, trace[i].second, 1e-15) << i;
  }
}

TEST(OptionNames, AcceptHyphensUnderscoresAndCapitals) {
  EXPECT_EQ(schedule_kind_from("cosine_with_restarts"), ScheduleKind::cosine_with_restarts);
  EXPECT_EQ(schedule_kind_from("Cosine-With-Restarts"), ScheduleKind::cosine_with_restarts);
  EXPECT_EQ(schedule_kind_from("wsd"), ScheduleKind::warmup_stable_decay);
  for (const ScheduleKind kind : all_schedule_kinds()) EXPECT_EQ(schedule_kind_from(name_of(kind)), kind);
  EXPECT_EQ(rank_change_policy_from("keep_rank_batch"), RankChangePolicy::keep_rank_batch);
  EXPECT_EQ(name_of(ScheduleFrom::command_line), "command-line");
  try {
    schedule_kind_from("cosinus");
    FAIL() << "an unknown schedule was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'cosinus'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cosine-with-restarts"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
