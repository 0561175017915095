#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "io/dataset_reader.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A small data set in the format of Fashion-MNIST, and the program that imports it.
class ImportFashionMnist : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / text("lockstep-import-", ::getpid());
    fs::create_directories(folder_ / "idx");
    write_set("train", 7, 7);
    write_set("t10k", 3, 3);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void write_gzip(const fs::path& path, const std::string& content) {
    const gzFile file = ::gzopen(path.c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
  }

  static std::string idx(const std::vector<std::uint32_t>& extents) {
    std::string content{0, 0, 8, static_cast<char>(extents.size())};
    for (const std::uint32_t extent : extents) {
      for (const int shift : {24, 16, 8, 0}) content += static_cast<char>(extent >> shift & 0xff);
    }
    const auto count = std::accumulate(extents.begin(), extents.end(), std::uint32_t{1}, std::multiplies<>());
    for (std::uint32_t i = 0; i < count; ++i) content += static_cast<char>(i * 37);
    return content;
  }

  fs::path file_of(const std::string& name) const { return folder_ / "idx" / name; }

  void write_set(const std::string& prefix, std::uint32_t num_images, std::uint32_t num_labels) const {
    write_gzip(file_of(prefix + "-images-idx3-ubyte.gz"), idx({num_images, 5, 4}));
    write_gzip(file_of(prefix + "-labels-idx1-ubyte.gz"), idx({num_labels}));
  }

  /// Runs the program, expects this exit code and these words in what it says.
  void expect(const std::string& arguments, int exit_code, const std::vector<std::string>& words) const {
    const std::string command = text(LOCKSTEP_IMPORT_PROGRAM, " ", (folder_ / "idx").string(), " --out ",
                                     (folder_ / "out").string(), " ", arguments, " 2>&1");
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> buffer;
    while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
      output.append(buffer.data(), count);
    const int status = ::pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == exit_code) << status << ": " << output;
    for (const std::string& word : words) EXPECT_NE(output.find(word), std::string::npos) << word << ": " << output;
  }

  fs::path folder_;
};

TEST_F(ImportFashionMnist, WritesWhatTheTrainerReads) {
  expect("", 0, {"train.h5: 7 images of 5 x 4 pixels", "test.h5: 3 images"});
  Hdf5Dataset data((folder_ / "out" / "train.h5").string());
  EXPECT_EQ(data.num_samples(), 7);
  EXPECT_EQ(data.fields()[0].type, ElementType::uint8);
  EXPECT_EQ(data.fields()[0].sample_shape, (std::vector<std::int64_t>{1, 5, 4}));
  EXPECT_EQ(data.fields()[1].type, ElementType::int64);
  EXPECT_TRUE(data.reads_beside_hdf5());
  const std::array<std::int64_t, 2> ids{6, 1};
  std::array<std::uint8_t, 40> images{};
  std::array<std::int64_t, 2> labels{};
  data.read(0, ids, reinterpret_cast<std::byte*>(images.data()));
  data.read(1, ids, reinterpret_cast<std::byte*>(labels.data()));
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(images[i], static_cast<std::uint8_t>((120 + i) * 37));
    EXPECT_EQ(images[20 + i], static_cast<std::uint8_t>((20 + i) * 37));
  }
  EXPECT_EQ(labels, (std::array<std::int64_t, 2>{222, 37}));
}

TEST_F(ImportFashionMnist, KeepsAFileThatHoldsTheSameAndRefusesAnother) {
  expect("", 0, {});
  expect("", 0, {"train.h5 is there already", "test.h5 is there already"});
  expect("--limit 2", 2, {"train.h5", "exists and holds something else", "--overwrite"});
  EXPECT_EQ(Hdf5Dataset((folder_ / "out" / "train.h5").string()).num_samples(), 7);
  expect("--limit 2 --overwrite", 0, {"train.h5: 2 images", "test.h5: 2 images"});
  EXPECT_EQ(Hdf5Dataset((folder_ / "out" / "train.h5").string()).num_samples(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "out"), fs::directory_iterator()), 2) << "a leftover";
}

TEST_F(ImportFashionMnist, SaysWhichFileIsWrongAndWhatToDo) {
  write_set("train", 7, 6);
  expect("", 2, {"7 images and 6 labels", "fetch the data set again"});
  write_set("train", 7, 7);
  fs::resize_file(file_of("train-images-idx3-ubyte.gz"), 60);
  expect("", 2, {"train-images-idx3-ubyte.gz"});
  write_gzip(file_of("train-images-idx3-ubyte.gz"), idx({7, 5, 4}).substr(0, 100));
  expect("", 2, {"ends too early"});
  write_gzip(file_of("train-images-idx3-ubyte.gz"), idx({7, 5, 4}) + "x");
  expect("", 2, {"holds more than its header says"});
  write_gzip(file_of("train-images-idx3-ubyte.gz"), idx({140}));
  expect("", 2, {"not an IDX file of bytes in 3 dimensions"});
  fs::remove(file_of("train-images-idx3-ubyte.gz"));
  expect("", 2, {"No such file", "dataset-fashion-mnist"});
  expect("--limit 0", 2, {"--limit"});
  EXPECT_FALSE(fs::exists(folder_ / "out" / "train.h5"));
}

}  // namespace
}  // namespace lockstep
