#include "drivers/metrics_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json step_line(std::int64_t step) { return {{"step", step}, {"lr", 0.5}, {"seconds", 2.0}}; }

/// A folder of its own for each test, with the file "m.jsonl".
class Metrics : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / text("lockstep-metrics-", ::getpid());
    fs::create_directories(folder_);
    file_ = (folder_ / "m.jsonl").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string content() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes; }

  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> found;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) found.push_back(Json::parse(line)["step"].get<std::int64_t>());
    return found;
  }

  MetricsTarget target(EarlierLines earlier, std::int64_t steps_taken = 0, const std::string& run = "") const {
    return {file_, run, earlier, steps_taken};
  }

  /// Opens the file, which must be refused and stay as it is; what the refusal says.
  std::string refusal(const MetricsTarget& target) const {
    const std::string before = content();
    std::string message;
    try {
      MetricsFile metrics(target);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      message = error.what();
    }
    EXPECT_NE(message, "");
    EXPECT_EQ(content(), before);
    return message;
  }

  fs::path folder_;
  std::string file_;
};

TEST_F(Metrics, NeverTouchWhatIsNoMetricsFile) {
  for (const std::string& bytes :
       {std::string("my notes\nof today\n"), std::string("my notes"), std::string("\x89HDF\r\n\x1a\n"),
        std::string("\n"), std::string("{\"title\": 1}\n"), std::string("{\"step\": \"one\"}\n"),
        std::string("{ not json")}) {
    put(bytes);
    for (const EarlierLines earlier : {EarlierLines::own, EarlierLines::marked, EarlierLines::foreign})
      EXPECT_NE(refusal(target(earlier, 9, "/a")).find("is no metrics file (line 1"), std::string::npos) << bytes;
  }
  put("{\"step\":1,\"lr\":1}\nnot ours\n{\"step\":2,\"lr\":1}\n");
  EXPECT_NE(refusal(target(EarlierLines::own, 9)).find("line 2"), std::string::npos);
}

TEST_F(Metrics, LeaveTheTemporaryFilesOfOthersAlone) {
  const std::string other = file_ + ".tmp";
  std::ofstream(other) << "somebody's";
  put("{\"step\":1,\"lr\":1}\n{\"step\":2,\"lr\":1}\n");
  MetricsFile metrics(target(EarlierLines::own, 1));
  EXPECT_EQ(fs::file_size(other), 10U);
}

TEST_F(Metrics, OfAnotherRunAreRefused) {
  { MetricsFile(target(EarlierLines::foreign, 0, "/a")).append(step_line(1)); }
  EXPECT_NE(refusal(target(EarlierLines::foreign)).find("another run (that of /a)"), std::string::npos);
  EXPECT_NE(refusal(target(EarlierLines::marked, 5, "/b")).find("give another --metrics-file"), std::string::npos);
  EXPECT_NE(refusal(target(EarlierLines::foreign, 0, "/a")).find("another run"),
            std::string::npos);  // it has just begun
}

TEST_F(Metrics, GoOnWithoutTheStepsThatWereLost) {
  const std::string strange = "/a\xff";  // no UTF-8
  {
    MetricsFile metrics(target(EarlierLines::foreign, 0, strange));
    for (int step = 1; step <= 4; ++step) metrics.append(step_line(step));
  }
  {
    MetricsFile metrics(target(EarlierLines::marked, 3, strange));
    EXPECT_EQ(metrics.num_dropped(), 1);
    EXPECT_EQ(metrics.kept_seconds(), 6.0);
    metrics.append(step_line(4));
  }
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3, 4}));
  MetricsFile from_the_start(target(EarlierLines::marked, 0, strange));
  EXPECT_EQ(from_the_start.num_dropped(), 4);
  EXPECT_EQ(content(), "");
}

TEST_F(Metrics, LoseOnlyALastLineThatWasCut) {
  const std::string whole = "{\"step\":1,\"lr\":1}\n";
  for (const char* cut : {"{\"st", "{\"step\":2,\"lr\":0.", "{"}) {
    put(whole + cut);
    MetricsFile metrics(target(EarlierLines::own, 5));
    EXPECT_EQ(content(), whole) << cut;
  }
  put(whole + "{\"step\":2,\"lr\":1}");  // only its end is missing
  { MetricsFile metrics(target(EarlierLines::own, 5)); }
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
  put("{\"step\":1,\"l");  // killed in its first line
  MetricsFile metrics(target(EarlierLines::own));
  EXPECT_EQ(content(), "");
}

TEST_F(Metrics, WhoseStepsGoBackAreNotOneRuns) {
  put("{\"step\":1,\"lr\":1}\n{\"step\":9,\"lr\":1}\n{\"step\":2,\"lr\":1}\n");
  EXPECT_NE(refusal(target(EarlierLines::own, 3)).find("go back in line 3"), std::string::npos);
}

TEST_F(Metrics, GoOnWhenThereIsRoomAgain) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails as a full disk does
  MetricsFile metrics(target(EarlierLines::foreign));
  EXPECT_FALSE(metrics.append(step_line(1)));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{fs::file_size(file_) + 7, limit.rlim_max};  // a part of a line fits
  for (int outage = 0; outage < 2; ++outage) {
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    const auto warning = metrics.append(step_line(2));
    const auto again = metrics.append(step_line(3));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    ASSERT_TRUE(warning);
    EXPECT_NE(warning->find("cannot be written"), std::string::npos);
    EXPECT_FALSE(again) << "one outage is told once";
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{1}));
    if (outage == 0) {
      const auto over = metrics.append(step_line(4));
      ASSERT_TRUE(over);
      EXPECT_NE(over->find("2 lines are missing"), std::string::npos);
      EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 4}));
      fs::resize_file(file_, full.rlim_cur - 7);
    }
  }
}

}  // namespace
}  // namespace lockstep
