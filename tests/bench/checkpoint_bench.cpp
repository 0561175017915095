// How long a checkpoint takes to be durable, and for how long one that is written in the background stops the run:
// our side of the comparison that checkpoint_side_by_side.py makes, with a raw write of as many bytes between the
// saves.
//
// Prints one line of JSON on rank 0: bytes, and seconds of raw_write (the mean of the one before and the one after
// the direct save), direct_save, collective_save, and of a save in the background: async_stop, all that the run
// stands still for, of which async_start for its start, async_wait for the copy before the state may change (after a
// piece of computation that stands for a forward and backward pass), and the rest for its further moves; and
// async_slowdown, by how much longer that computation took than compute_alone, the mean of the times before and after
// the save. FOLDER/direct and FOLDER/collective keep their newest checkpoint, of the same step.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/command_line.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/posix_file.hpp"
#include "io/staging_buffer.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "tests/io/made_state.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t block_elements = 1 << 14;
constexpr int num_moves = 2;  // of a save after its start
constexpr std::size_t matrix_extent = 512;
constexpr int num_products = 8;  // of such matrices, in a piece of computation: 100 to 200 ms
constexpr std::size_t raw_piece_bytes = std::size_t{8} << 20;

struct Options {
  std::string folder;
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
};

/// Weights and two moments: in each of the three, tensor i has `elements` + i elements.
test::MadeState made_state(const Options& options) {
  test::MadeState state(block_elements);
  for (const char* section : {"weights", "optimizer/exp_avg", "optimizer/exp_avg_sq"}) {
    for (std::int64_t i = 0; i < options.tensors; ++i) {
      state.add(section, "layer" + std::to_string(i), ElementType::float32, {options.elements + i});
    }
  }
  return state;
}

/// What a run computes between the start of a save and the next change of its state.
class Computation {
 public:
  void run() {
    for (int i = 0; i < num_products; ++i) {
      multiply();
      std::swap(left_, product_);
    }
  }

 private:
  using Matrix = std::vector<float>;
  static constexpr std::size_t num_elements = matrix_extent * matrix_extent;

  void multiply() {
    std::fill(product_.begin(), product_.end(), 0.0F);
    for (std::size_t row = 0; row < matrix_extent; ++row) {
      float* const into = product_.data() + row * matrix_extent;
      for (std::size_t k = 0; k < matrix_extent; ++k) {
        const float factor = left_[row * matrix_extent + k];
        const float* const from = right_.data() + k * matrix_extent;
        for (std::size_t column = 0; column < matrix_extent; ++column) into[column] += factor * from[column];
      }
    }
  }

  Matrix left_ = Matrix(num_elements, 1.0F);
  Matrix right_ = Matrix(num_elements, 1.0F / matrix_extent);
  Matrix product_ = Matrix(num_elements);
};

class Bench {
 public:
  Bench(const Options& options, Communicator& communicator)
      : communicator_(communicator),
        folder_(options.folder),
        state_(made_state(options)),
        direct_(communicator, store_options("direct", WriterKind::direct, SaveTiming::synchronous)),
        collective_(communicator, store_options("collective", WriterKind::collective, SaveTiming::synchronous)),
        async_(communicator, store_options("async", WriterKind::direct, SaveTiming::asynchronous)) {
    const Snapshot layout = snapshot_of(0);
    for (CheckpointDirectory* store : {&direct_, &collective_, &async_}) store->prepare(layout);
    for (const TensorPart& part : layout.tensors) {
      num_bytes_ += static_cast<std::uint64_t>(part.info.num_elements()) * size_of(part.info.type);
    }
    raw_ = StagingBuffer(num_bytes_ / static_cast<std::uint64_t>(communicator.num_ranks()) / 4096 * 4096);
    std::mt19937_64 random(static_cast<std::uint64_t>(communicator.rank()));
    for (std::size_t i = 0; i < raw_.size(); ++i) raw_.data()[i] = static_cast<std::byte>(random());
  }

  /// One round of everything.
  nlohmann::json measure(std::int64_t step) {
    const Snapshot snapshot = snapshot_of(step);
    const double raw_before = time_raw_write();
    const double direct = time_save(direct_, snapshot);
    const double raw_after = time_raw_write();
    const double collective = time_save(collective_, snapshot);
    const double computed_before = timed([&] { computation_.run(); });
    const double start = timed([&] { async_.start_save(snapshot); });
    const double computed_beside = timed([&] { computation_.run(); });
    const double wait = timed([&] { async_.wait_until_copied(); });
    double stop = start + wait;
    for (int move = 0; move < num_moves; ++move) {
      while (!async_.part_is_durable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      stop += timed([&] { async_.commit_save(); });
    }
    async_.finish();
    settle();
    const double computed_after = timed([&] { computation_.run(); });
    const double computed_alone = (computed_before + computed_after) / 2;
    return {{"bytes", num_bytes_},
            {"raw_write", (raw_before + raw_after) / 2},
            {"direct_save", direct},
            {"collective_save", collective},
            {"async_stop", stop},
            {"async_start", start},
            {"async_wait", wait},
            {"async_slowdown", computed_beside - computed_alone},
            {"compute_alone", computed_alone}};
  }

 private:
  CheckpointOptions store_options(const std::string& name, WriterKind writer, SaveTiming timing) const {
    CheckpointOptions out;
    out.directory = folder_ + "/" + name;
    out.writer = writer;
    out.timing = timing;
    out.retention.total_limit = 1;
    return out;
  }

  Snapshot snapshot_of(std::int64_t step) {
    return state_.snapshot(step, communicator_.rank(), communicator_.num_ranks());
  }

  /// Seconds until `work` has ended on all ranks.
  template <class Work>
  double timed(const Work& work) {
    communicator_.barrier();
    const auto start = std::chrono::steady_clock::now();
    work();
    communicator_.barrier();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double time_save(CheckpointDirectory& store, const Snapshot& snapshot) {
    const double seconds = timed([&] { store.start_save(snapshot); });
    store.finish();
    settle();
    return seconds;
  }

  /// What the disk gives: every rank writes its part of one file from aligned memory, then makes it durable.
  double time_raw_write() {
    const std::string path = folder_ + "/raw";
    const bool direct = takes_direct_writes(folder_);
    const double seconds = timed([&] {
      agree(communicator_, [&] { make_raw_file(path); });
      agree(communicator_, [&] {
        PosixFile file(path, direct ? FileAccess::write_direct : FileAccess::write);
        const std::uint64_t begin = raw_.size() * static_cast<std::uint64_t>(communicator_.rank());
        for (std::size_t at = 0; at < raw_.size(); at += raw_piece_bytes) {
          file.write_at(std::span(raw_.data() + at, std::min(raw_piece_bytes, raw_.size() - at)), begin + at);
        }
        file.sync();
      });
    });
    if (communicator_.rank() == 0) remove_file(path);
    settle();
    return seconds;
  }

  /// The raw file, with room on the disk.
  void make_raw_file(const std::string& path) const {
    if (communicator_.rank() != 0) return;
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666);
    const auto bytes = static_cast<off_t>(raw_.size()) * communicator_.num_ranks();
    const bool has_room =
        descriptor >= 0 && ::ftruncate(descriptor, bytes) == 0 && ::fallocate(descriptor, 0, 0, bytes) == 0;
    ::close(descriptor);
    if (!has_room) throw Error(ErrorKind::failed, text("no room for ", bytes, " bytes in '", path, "'"));
  }

  /// Lets the disk finish what removed files cost it, so that nobody pays for what came before.
  void settle() {
    communicator_.barrier();
    if (communicator_.rank() == 0) ::sync();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    communicator_.barrier();
  }

  Communicator& communicator_;
  std::string folder_;
  test::MadeState state_;
  CheckpointDirectory direct_;
  CheckpointDirectory collective_;
  CheckpointDirectory async_;
  Computation computation_;
  std::uint64_t num_bytes_ = 0;
  StagingBuffer raw_;
};

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Times checkpoints.", "checkpoint_bench");
  prepare_command_line(app);
  app.add_option("folder", options.folder, "An empty folder on the disk in question")->required();
  add_count(app, "--tensors", options.tensors, kPositive, "Tensors of each of the three sections")->required();
  add_count(app, "--elements", options.elements, kPositive, "Elements of the first; each has one more")->required();
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) return *code;

  const MpiSession session;
  const std::unique_ptr<Communicator> communicator = make_communicator(session, CommunicatorKind::automatic, {});
  Bench bench(options, *communicator);
  bench.measure(1);  // what only the first save costs is not counted
  const nlohmann::json report = bench.measure(2);
  if (communicator->rank() == 0) std::cout << report.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run_program("checkpoint_bench", argc, argv, lockstep::run); }
