// A reader of changed files: no crash, no hang, no memory beyond the file's size, and no change believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <string>

#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_file.hpp"
#include "io/digest.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "tests/io/made_state.hpp"

namespace {
std::atomic<std::size_t> largest_request = 0;
}

// Every allocation of the program goes by here, so that the largest one is known.
[[gnu::noinline]] void* operator new(std::size_t size) {
  std::size_t seen = largest_request.load();
  while (size > seen && !largest_request.compare_exchange_weak(seen, size)) {
  }
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

class CheckpointFuzz : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = test::make_test_folder(alone_, test::Place::memory);
    CheckpointOptions options;
    options.directory = folder_ + "/run";
    options.writer = WriterKind::direct;
    test::MadeState state = test::small_state();
    CheckpointDirectory(alone_, options).start_save(state.snapshot(40, 0, 1));
    std::ifstream file(options.directory + "/" + checkpoint_file_name(40), std::ios::binary);
    good_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_TRUE(is_believed(good_));
  }
  void TearDown() override { test::remove_folder(alone_, folder_); }

  /// Opens and verifies a file of these bytes; what is refused must be refused with an Error.
  bool is_believed(const std::string& bytes) {
    const std::string path = folder_ + "/changed.h5";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    largest_request = 0;
    try {
      CheckpointFile(path).verify();
    } catch (const Error&) {
      EXPECT_LE(largest_request.load(), std::max<std::size_t>(bytes.size(), 1 << 16) + 4096);
      return false;
    }
    return true;
  }

  /// Makes the header's own digest right again.
  static void seal_header(std::string& bytes) {
    const std::string key = "header-digest: ";
    const std::size_t at = bytes.substr(0, header_bytes).rfind(key);
    if (at == std::string::npos || at + key.size() + 17 > bytes.size()) return;
    bytes.replace(at + key.size(), 16, hexadecimal(digest_of(std::as_bytes(std::span(bytes.data(), at)))));
  }

  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }

  std::mt19937_64 random_{20261130};
  OneProcessCommunicator alone_;
  std::string folder_;
  std::string good_;
};

TEST_F(CheckpointFuzz, NoChangedByteIsBelieved) {
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = good_;
    const std::size_t at = below(bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1 + below(255)));
    EXPECT_FALSE(is_believed(bytes)) << "byte " << at;
  }
}

TEST_F(CheckpointFuzz, NoCutMovedOrFilledPieceIsBelieved) {
  for (int i = 0; i < 800; ++i) {
    std::string bytes = good_;
    const std::size_t from = below(bytes.size());
    const std::size_t count = 1 + below(std::min<std::size_t>(bytes.size() - from, 9000));
    switch (i % 5) {
      case 0:
        bytes.resize(from);
        break;
      case 1:
        bytes.erase(from, count);
        break;
      case 2:
        bytes.insert(from, good_, below(good_.size()), count);
        break;
      case 3:
        bytes.replace(from, count, std::string(count, static_cast<char>(below(256))));
        break;
      default:
        bytes.replace(from, count, good_.substr(below(good_.size() - count + 1), count));
    }
    EXPECT_EQ(is_believed(bytes), bytes == good_) << "change " << i;
  }
}

TEST_F(CheckpointFuzz, NoForgedNumberInTheHeaderIsBelieved) {
  const std::string numbers[] = {
      "0",  "1", "4095",  "18446744073709551615", "9223372036854775807", "99999999999999999999",
      "-1", "",  "4096x", "1152921504606846976"};
  for (const char* key : {"format: ", "step: ", "file-bytes: ", "data-begin: ", "data-end: ", "blocks-begin: ",
                          "num-blocks: ", "metadata-digest: ", "state-digest: "}) {
    for (const std::string& number : numbers) {
      std::string header = good_.substr(0, header_bytes);
      const std::size_t at = header.find(std::string("\n") + key) + 1 + std::string(key).size();
      const std::size_t end = header.find('\n', at);
      header.replace(at, end - at, number);
      header.resize(header_bytes, '\0');
      std::string bytes = header + good_.substr(header_bytes);
      seal_header(bytes);
      EXPECT_EQ(is_believed(bytes), bytes == good_) << key << number;
    }
  }
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good_;
    const std::size_t at = below(bytes.find('\0'));
    bytes[at] = static_cast<char>(below(128));
    seal_header(bytes);
    EXPECT_EQ(is_believed(bytes), bytes == good_) << "byte " << at << " of the header";
  }
}

TEST_F(CheckpointFuzz, NoOtherSpellingOfTheHeaderIsBelieved) {
  const std::string good = good_.substr(0, header_bytes);
  const auto believes = [&](std::string header) {
    header.resize(header_bytes, '\0');
    std::string bytes = header + good_.substr(header_bytes);
    seal_header(bytes);
    return is_believed(bytes);
  };
  ASSERT_TRUE(believes(good));
  for (const char* key : {"format: ", "metadata-digest: ", "state-digest: "}) {  // 012 is twelve
    std::string header = good;
    header.insert(header.find(key) + std::string(key).size(), "0");
    EXPECT_FALSE(believes(header)) << key << "with a zero before it";
  }
  std::string header = good;
  const std::size_t digest = header.find("state-digest: ") + std::string("state-digest: ").size();
  std::transform(
      header.begin() + static_cast<std::ptrdiff_t>(digest), header.begin() + static_cast<std::ptrdiff_t>(digest) + 16,
      header.begin() + static_cast<std::ptrdiff_t>(digest), [](unsigned char c) { return std::toupper(c); });
  EXPECT_EQ(believes(header), header == good) << "a digest in capitals";  // it may have no letter
  for (const std::string line : {"note: 1\n", "step: 40\n"}) {
    EXPECT_FALSE(believes(std::string(good).insert(good.find("complete: "), line))) << line;
  }
}

}  // namespace
}  // namespace lockstep
