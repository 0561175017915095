#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "io/checkpoint_file.hpp"
#include "tests/programs/checkpoint_files.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::SmallRun;

/// What a program printed (both outputs, as a terminal shows them) and returned.
struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome run_command(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

Outcome run_tool(const std::string& arguments) { return run_command(LOCKSTEP_CHECKPOINT_PROGRAM " " + arguments); }

/// A folder of its own for each test.
class CheckpointProgram : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / text("lockstep-checkpoint-", ::getpid())).string();
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string in(const std::string& name) const { return folder_ + "/" + name; }

  /// The first byte of a tensor's elements is another one afterwards.
  static void damage(const std::string& path, std::string_view section, std::string_view name) {
    std::uint64_t offset = 0;
    {
      const CheckpointFile file(path);
      offset = file.catalogue().tensors[file.find(section, name).value()].offset;
    }
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(offset));
    const int old = bytes.get();
    bytes.seekp(static_cast<std::streamoff>(offset));
    bytes.put(static_cast<char>(old ^ 1));
  }

  static std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
  }

  static void expect(const Outcome& outcome, int exit_code, const std::vector<std::string>& words) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.output.find(word), std::string::npos) << "'" << word << "' is not in:\n" << outcome.output;
    }
  }

  std::string folder_;
};

TEST_F(CheckpointProgram, ExplainsItselfWithoutALauncher) {
  expect(run_tool("--help"), 0, {"show", "verify", "diff", "export", "prune", "Exit codes"});
  expect(run_tool("diff --help"), 0, {"FILE|DIR"});
  expect(run_tool(""), 2, {"lockstep-checkpoint: "});
  expect(run_tool("show"), 2, {"path", "required"});
  expect(run_tool("look x"), 2, {"lockstep-checkpoint: "});
  expect(run_tool("prune . --keep 0"), 2, {"--keep", "smallest value is 1"});
}

TEST_F(CheckpointProgram, SaysWhenItsAnswerCannotBeWritten) {
  const std::string path = SmallRun().save(in("run"));
  for (const std::string& arguments : {"show " + path, "show --json " + path, "verify " + path,
                                       "diff " + path + " " + path, "prune --keep 1 --dry-run " + in("run"),
                                       "export --out " + in("w.safetensors") + " " + path, std::string("--help")})
    expect(run_command("(" LOCKSTEP_CHECKPOINT_PROGRAM " " + arguments + " > /dev/full)"), 1,
           {"lockstep-checkpoint: what was printed could not be written"});
}

TEST_F(CheckpointProgram, ShowsStateAndTensorsInTables) {
  SmallRun run;
  run.aliases.push_back({"weights", "head.weight", "conv.weight"});
  run.add<float>("weights", "sick", ElementType::float32, {3}, {1, std::nanf(""), -2});
  run.add<float>("weights", "spaces and ümläut / \"quotes\"", ElementType::float32, {0, 4}, {});
  run.take_steps(7);
  const std::string path = run.save(in("run"));
  const Outcome file = run_tool("show " + path);
  expect(file, 0,
         {"step 7",
          "whole",
          "Progress\n",
          "  consumed_samples  28",
          "  epoch             1",
          "Plan\n",
          "Schedule\n",
          "Loss scaler\n",
          "1024",
          "Launches\n",
          "test 1.0",
          "Tensors\n",
          "weights            conv.weight",
          "[2, 1, 2, 2]",
          "float32",
          "5.6789",
          "1 not finite",
          "head.weight  is another name of conv.weight",
          "ümläut",
          "[0, 4]",
          "5 tensors, 20 elements, 84 bytes"});
  expect(run_tool("show " + in("run")), 0, {path});
  EXPECT_EQ(run_tool("show " + in("run")).output, file.output);
}

TEST_F(CheckpointProgram, ShowsTheSameAsJson) {
  SmallRun run;
  run.add<std::uint16_t>("weights", "half", ElementType::float16, {4}, {0x3c00, 0xc000, 0x0001, 0x7c00});
  run.add<std::uint16_t>("weights", "brain", ElementType::bfloat16, {2}, {0x3f80, 0xc000});
  run.add<float>("weights", "waves", ElementType::complex64, {2}, {3, 4, 0, 1});
  run.take_steps(3);
  const Outcome outcome = run_tool("show --json " + run.save(in("run")));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto shown = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(shown["step"], 3);
  EXPECT_EQ(shown["attributes"]["progress"]["consumed_samples"], 12);
  EXPECT_EQ(shown["attributes"]["loss_scaler"]["scale"], 1024.0);
  EXPECT_EQ(shown["launches"][0]["ranks"], 1);
  ASSERT_EQ(shown["tensors"].size(), 6u);
  const auto tensor = [&](const std::string& name, const std::string& section = "weights") {
    for (const auto& one : shown["tensors"]) {
      if (one["name"] == name && one["section"] == section) return one;
    }
    return nlohmann::json();
  };
  EXPECT_EQ(tensor("conv.weight")["min"], -4.0);
  EXPECT_EQ(tensor("conv.weight")["max"], 3.0);
  EXPECT_DOUBLE_EQ(tensor("conv.weight")["norm"], std::sqrt(32.25));
  EXPECT_EQ(tensor("conv.weight", "optimizer/exp_avg")["max"], 0.25);
  EXPECT_EQ(tensor("norm.num_batches_tracked", "buffers")["max"], 41.0);
  EXPECT_EQ(tensor("norm.num_batches_tracked", "buffers")["shape"], nlohmann::json::array());
  EXPECT_EQ(tensor("half")["type"], "float16");
  EXPECT_EQ(tensor("half")["min"], -2.0);
  EXPECT_EQ(tensor("half")["max"], 1.0);
  EXPECT_EQ(tensor("half")["not_finite"], 1);
  EXPECT_EQ(tensor("brain")["min"], -2.0);
  EXPECT_EQ(tensor("waves")["max"], 5.0);
  EXPECT_EQ(tensor("waves")["whole"], true);
}

TEST_F(CheckpointProgram, MarksDamagedTensors) {
  SmallRun run;
  const std::string path = run.save(in("run"));
  damage(path, "weights", "conv.weight");
  expect(run_tool("show " + path), 1, {"damaged", "'conv.weight'", "optimizer/exp_avg"});
  const Outcome json = run_tool("show --json " + path);
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_NE(json.output.find("\"whole\": false"), std::string::npos) << json.output;
}

TEST_F(CheckpointProgram, SaysWhyAFileCannotBeRead) {
  std::ofstream(in("text.h5")) << "no checkpoint";
  for (const std::string& command : std::vector<std::string>{"show ", "verify ", "export --out " + in("x") + " "}) {
    expect(run_tool(command + in("missing.h5")), 2, {"missing.h5", "No such file"});
  }
  expect(run_tool("show " + in("text.h5")), 2, {"text.h5"});
  expect(run_tool("show " + folder_), 2, {"holds no checkpoint", "step-00000100.h5"});
  expect(run_tool("prune --keep 1 " + in("text.h5")), 2, {"is not a folder"});
}

TEST_F(CheckpointProgram, VerifiesAFileAndAFolder) {
  SmallRun run;
  const std::string first = run.save(in("run"));
  run.take_steps(1);
  const std::string second = run.save(in("run"));
  run.take_steps(1);
  const std::string third = run.save(in("run"));
  expect(run_tool("verify " + in("run")), 0, {first, second, third, "whole"});
  damage(second, "optimizer/exp_avg", "conv.weight");
  fs::resize_file(third, fs::file_size(third) - 1);
  const Outcome outcome = run_tool("verify " + in("run"));
  expect(outcome, 1, {"whole", "damaged", "section 'optimizer/exp_avg'", "bytes"});
  expect(run_tool("verify " + first), 0, {"whole"});
  expect(run_tool("verify " + second), 1, {"damaged"});
  expect(run_tool("verify " + third), 1, {"damaged"});
}

TEST_F(CheckpointProgram, ProvesCoverageOverAChainOfRankCounts) {
  SmallRun run(2);
  run.take_steps(4);
  run.resume_on(3);
  run.take_steps(3);
  run.resume_on(1);
  run.take_steps(8);
  const Outcome outcome = run_tool("verify --coverage " + run.save(in("run")));
  expect(outcome, 0, {"Coverage of", "15 steps used 60 samples", "the ids that were read are those"});
  SmallRun wrong;
  wrong.wrong_ids = 1;
  wrong.take_steps(5);
  expect(run_tool("verify --coverage " + wrong.save(in("wrong"))), 1, {"whole", "wrong/step-00000005.h5"});
}

TEST_F(CheckpointProgram, FindsTheSameStateWhateverTheLaunch) {
  SmallRun left(2);
  left.take_steps(6);
  SmallRun right(2);
  right.take_steps(4);
  right.resume_on(3);
  right.take_steps(2);
  right.facts["options"]["save_steps"] = std::int64_t{7};
  const Outcome outcome = run_tool("diff " + left.save(in("left")) + " " + right.save(in("right")));
  expect(outcome, 0, {"the same to the last bit", "they do not count", "options/save_steps"});
  EXPECT_EQ(outcome.output.find("provenance"), std::string::npos) << outcome.output;
  expect(run_tool("diff " + in("left") + " " + in("right")), 0, {"the same to the last bit"});
}

TEST_F(CheckpointProgram, SaysWhichTensorsDifferAndByHowMuch) {
  SmallRun run;
  run.add<double>("weights", "zero", ElementType::float64, {2}, {0.0, 1.0});
  const std::string left = run.save(in("left"));
  run.tensors[0].bytes[4 * 5 + 3] = std::byte{0x40};  // -4 becomes 4
  const double minus_zero = -0.0;
  std::memcpy(run.tensors[3].bytes.data(), &minus_zero, sizeof minus_zero);
  const Outcome outcome = run_tool("diff " + left + " " + run.save(in("right")));
  expect(outcome, 1,
         {"Tensors with other elements", "weights  conv.weight         8       1         5", "  8 ",
          "weights  zero                2       1         0", "different"});
  EXPECT_EQ(outcome.output.find("exp_avg"), std::string::npos) << outcome.output;
}

TEST_F(CheckpointProgram, FindsEveryKindOfDifference) {
  const auto differs = [&](const std::string& name, const std::function<void(SmallRun&)>& change,
                           const std::vector<std::string>& words) {
    SmallRun run;
    const std::string left = run.save(in(name + "-a"));
    change(run);
    const std::string right = run.save(in(name + "-b"));
    expect(run_tool("diff " + left + " " + right), 1, words);
    expect(run_tool("diff " + right + " " + left), 1, words);
  };
  differs("buffer", [](SmallRun& run) { run.tensors[2].bytes[0] = std::byte{42}; }, {"norm.num_batches_tracked"});
  differs("moment", [](SmallRun& run) { run.tensors[1].bytes[0] = std::byte{1}; }, {"optimizer/exp_avg"});
  differs("scaler", [](SmallRun& run) { run.facts["loss_scaler"]["scale"] = 2048.0; },
          {"loss_scaler/scale", "1024", "2048"});
  differs("progress", [](SmallRun& run) { run.take_steps(1); },
          {"progress/consumed_samples", "schedule/next_learning_rate"});
  differs("more", [](SmallRun& run) { run.add<float>("weights", "more", ElementType::float32, {1}, {1}); },
          {"more", "missing", "float32 [1]"});
  differs("shape", [](SmallRun& run) { run.tensors[0].info.shape = {8}; }, {"float32 [8]", "float32 [2, 1, 2, 2]"});
  differs("type", [](SmallRun& run) { run.tensors[0].info.type = ElementType::int32; }, {"int32 [2, 1, 2, 2]"});
  differs("alias",
          [](SmallRun& run) {
            run.aliases.push_back({"weights", "tied", "conv.weight"});
          },
          {"tied", "only in"});
}

TEST_F(CheckpointProgram, AnswersTwoWhenAComparedFileIsDamaged) {
  SmallRun run;
  const std::string left = run.save(in("left"));
  const std::string right = run.save(in("right"));
  damage(right, "weights", "conv.weight");
  expect(run_tool("diff " + left + " " + right), 2, {"lockstep-checkpoint: ", right, "'conv.weight'"});
  expect(run_tool("diff " + right + " " + left), 2, {right});
  expect(run_tool("diff " + left + " " + in("missing.h5")), 2, {"missing.h5"});
}

/// All 65,536 patterns of 16 bits as two types, and one tensor of other types and shapes.
SmallRun run_to_export() {
  std::vector<std::uint16_t> patterns(65536);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  SmallRun run;
  run.add("weights", "half", ElementType::float16, {256, 256}, patterns);
  run.add("weights", "brain", ElementType::bfloat16, {65536}, patterns);
  run.add<double>("weights", "a.double", ElementType::float64, {}, {0.1});
  run.add<std::uint8_t>("buffers", "mask", ElementType::boolean, {3}, {1, 0, 1});
  run.add<float>("weights", "none", ElementType::float32, {0, 4}, {});
  run.add<std::int32_t>("buffers", "ümläut \"x\"", ElementType::int32, {2}, {-1, 1});
  run.aliases.push_back({"weights", "tied.weight", "conv.weight"});
  return run;
}

TEST_F(CheckpointProgram, ExportsEveryBitAsSafetensors) {
  SmallRun run = run_to_export();
  const std::string target = in("weights.safetensors");
  expect(run_tool("export " + run.save(in("run")) + " --out " + target), 0, {target, "8 tensors"});
  const std::string content = read_file(target);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), sizeof header_bytes);
  EXPECT_EQ(header_bytes % 8, 0u);
  const auto header = nlohmann::json::parse(content.substr(8, header_bytes));
  const std::string data = content.substr(8 + header_bytes);
  EXPECT_EQ(header["__metadata__"]["tied.weight"], "conv.weight");
  std::size_t num_bytes = 0;
  for (const SmallRun::Tensor& tensor : run.tensors) {
    if (tensor.info.section == "optimizer/exp_avg") continue;
    const auto& entry = header.at(tensor.info.name);
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    EXPECT_EQ(entry["shape"].get<std::vector<std::int64_t>>(), tensor.info.shape);
    EXPECT_EQ(begin % size_of(tensor.info.type), 0u) << tensor.info.name;
    ASSERT_EQ(end - begin, tensor.bytes.size()) << tensor.info.name;
    EXPECT_EQ(std::memcmp(data.data() + begin, tensor.bytes.data(), tensor.bytes.size()), 0) << tensor.info.name;
    num_bytes += tensor.bytes.size();
  }
  EXPECT_EQ(data.size(), num_bytes);
}

TEST_F(CheckpointProgram, ExportsWhatThePythonPackageReads) {
  if (run_command("python3 -c 'import safetensors'").exit_code != 0) GTEST_SKIP() << "no Python package safetensors";
  SmallRun run = run_to_export();
  const std::string target = in("weights.safetensors");
  expect(run_tool("export " + run.save(in("run")) + " --out " + target), 0, {});
  std::ofstream(in("read.py")) << "import safetensors, sys\n"
                                  "for name, t in sorted(safetensors.deserialize(open(sys.argv[1], 'rb').read())):\n"
                                  "    sys.stdout.buffer.write(f\"{name}|{t['dtype']}|{t['shape']}|\".encode())\n"
                                  "    sys.stdout.buffer.write(bytes(t['data']) + b'\\n')\n";
  const std::map<std::string, std::string> kinds{{"half", "F16|[256, 256]"},
                                                 {"brain", "BF16|[65536]"},
                                                 {"a.double", "F64|[]"},
                                                 {"mask", "BOOL|[3]"},
                                                 {"none", "F32|[0, 4]"},
                                                 {"ümläut \"x\"", "I32|[2]"},
                                                 {"conv.weight", "F32|[2, 1, 2, 2]"},
                                                 {"norm.num_batches_tracked", "I64|[]"}};
  std::map<std::string, std::string> expected;
  for (const SmallRun::Tensor& tensor : run.tensors) {
    if (tensor.info.section == "optimizer/exp_avg") continue;
    expected[tensor.info.name] =
        tensor.info.name + "|" + kinds.at(tensor.info.name) + "|" +
        std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()) + "\n";
  }
  std::string all;
  for (const auto& [name, line] : expected) all += line;
  const Outcome read = run_command("python3 " + in("read.py") + " " + target);
  EXPECT_EQ(read.exit_code, 0);
  EXPECT_TRUE(read.output == all) << "the Python package read something else";
}

TEST_F(CheckpointProgram, NeverReplacesAnExportSilently) {
  SmallRun run;
  const std::string path = run.save(in("run"));
  const std::string target = in("weights.safetensors");
  std::ofstream(target) << "precious";
  expect(run_tool("export " + path + " --out " + target), 2, {"exists", "--overwrite"});
  EXPECT_EQ(read_file(target), "precious");
  expect(run_tool("export --overwrite " + path + " --out " + target), 0, {});
  EXPECT_NE(read_file(target), "precious");
  damage(path, "weights", "conv.weight");
  expect(run_tool("export " + path + " --out " + in("other")), 2, {"'conv.weight'"});
  EXPECT_FALSE(fs::exists(in("other")));
  expect(run_tool("export " + path + " --out " + in("no/such/folder")), 2, {"No such file"});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "a leftover";
}

TEST_F(CheckpointProgram, PrunesByNumberAndKeepsTheNewestWholeOne) {
  SmallRun run;
  std::vector<std::string> paths;
  for (std::int64_t step = 0; step <= 11; ++step) {
    if (step > 0) run.take_steps(1);
    if (step == 2 || step >= 8) paths.push_back(run.save(in("run")));  // 2, 8, 9, 10, 11
  }
  const auto steps_left = [&] {
    std::vector<std::int64_t> steps;
    for (const auto& entry : fs::directory_iterator(in("run"))) {
      if (const auto step = step_of_file_name(entry.path().filename().string())) steps.push_back(*step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  };
  expect(run_tool("prune --dry-run --keep 2 " + in("run")), 0, {"would be removed", "3 of 5"});
  EXPECT_EQ(steps_left().size(), 5u);
  damage(paths[4], "weights", "conv.weight");  // 11 is not whole: 10 and 9 are the newest two
  expect(run_tool("prune --keep 2 --keep-every 8 " + in("run")), 0,
         {"damaged, left alone", "kept, the newest whole one", "1 of 5 checkpoints removed", "'conv.weight'"});
  EXPECT_EQ(steps_left(), (std::vector<std::int64_t>{8, 9, 10, 11}));
  expect(run_tool("prune --keep 1 " + in("run")), 0, {"2 of 4"});
  EXPECT_EQ(steps_left(), (std::vector<std::int64_t>{10, 11}));
  damage(paths[3], "weights", "conv.weight");
  expect(run_tool("prune --keep 1 " + in("run")), 2, {"none of the 2 checkpoints", "nothing was removed"});
  EXPECT_EQ(steps_left(), (std::vector<std::int64_t>{10, 11}));
}

}  // namespace
}  // namespace lockstep
