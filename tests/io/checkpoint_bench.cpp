// How fast a checkpoint becomes durable, beside a raw parallel O_DIRECT write of as many bytes in the same round.
// Run by hand on a quiet machine; a wall time is no test.
//
//   mpirun -n 2 checkpoint-bench FOLDER [MEGABYTES=483] [ROUNDS=5] [--collective]
//
// Prints per round: MB/s of the raw write, of a synchronous save, of a collective one if asked for, and for how many
// milliseconds an asynchronous one stops the run (start and commit apart); then the medians.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "io/checkpoint_directory.hpp"
#include "io/posix_file.hpp"
#include "io/staging_buffer.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "tests/io/made_state.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t num_layers = 124;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of `work` on all ranks, between two barriers.
template <class Work>
double timed(Communicator& communicator, const Work& work) {
  communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  communicator.barrier();
  return seconds_since(start);
}

test::MadeState made_state(std::int64_t megabytes) {
  test::MadeState state(1 << 14);
  const std::int64_t elements = megabytes * 1'000'000 / 4 / 3 / num_layers;
  for (const char* section : {"weights", "optimizer/exp_avg", "optimizer/exp_avg_sq"}) {
    for (std::int64_t i = 0; i < num_layers; ++i) {
      state.add(section, "layer" + std::to_string(i), ElementType::float32, {elements + i});
    }
  }
  return state;
}

// What the disk gives: every rank writes its part of one file from aligned memory, then makes it durable.
void write_raw(Communicator& communicator, const std::string& path, const StagingBuffer& part) {
  agree(communicator, [&] {
    if (communicator.rank() != 0) return;
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666);
    const auto bytes = static_cast<off_t>(part.size()) * communicator.num_ranks();
    const bool has_room =
        descriptor >= 0 && ::ftruncate(descriptor, bytes) == 0 && ::fallocate(descriptor, 0, 0, bytes) == 0;
    ::close(descriptor);
    if (!has_room) throw Error(ErrorKind::failed, "no room for the raw file");
  });
  agree(communicator, [&] {
    constexpr std::size_t piece_bytes = std::size_t{16} << 20;
    PosixFile file(path, takes_direct_writes(std::filesystem::path(path).parent_path().string())
                             ? FileAccess::write_direct
                             : FileAccess::write);
    const std::uint64_t begin = part.size() * static_cast<std::uint64_t>(communicator.rank());
    for (std::size_t at = 0; at < part.size(); at += piece_bytes) {
      file.write_at(std::span(part.data() + at, std::min(piece_bytes, part.size() - at)), begin + at);
    }
    file.sync();
  });
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Store {
  Store(Communicator& communicator, const std::string& folder, WriterKind writer, SaveTiming timing)
      : options(make(folder, writer, timing)), directory(communicator, options) {}

  static CheckpointOptions make(const std::string& folder, WriterKind writer, SaveTiming timing) {
    CheckpointOptions out;
    out.directory = folder;
    out.writer = writer;
    out.timing = timing;
    out.retention.total_limit = 1;
    return out;
  }

  CheckpointOptions options;
  CheckpointDirectory directory;
};

void run(Communicator& communicator, const std::string& folder, std::int64_t megabytes, int rounds, bool collective) {
  test::MadeState state = made_state(megabytes);
  const int rank = communicator.rank();
  const Snapshot layout = state.snapshot(0, rank, communicator.num_ranks());
  Store direct(communicator, folder + "/direct", WriterKind::direct, SaveTiming::synchronous);
  Store async(communicator, folder + "/async", WriterKind::direct, SaveTiming::asynchronous);
  Store reference(communicator, folder + "/collective", WriterKind::collective, SaveTiming::synchronous);
  direct.directory.prepare(layout);
  async.directory.prepare(layout);
  std::uint64_t bytes = 0;
  for (const TensorPart& part : layout.tensors) bytes += static_cast<std::uint64_t>(part.info.num_elements()) * 4;
  const std::uint64_t part_bytes = bytes / static_cast<std::uint64_t>(communicator.num_ranks()) / 4096 * 4096;
  const StagingBuffer raw(part_bytes);
  for (std::size_t i = 0; i < raw.size(); ++i) raw.data()[i] = static_cast<std::byte>(std::rand());
  std::vector<double> ratios, starts, commits, speeds;
  for (int round = 1; round <= rounds; ++round) {
    const auto rate = [&](double seconds) { return static_cast<double>(bytes) / 1e6 / seconds; };
    Snapshot snapshot = state.snapshot(round, rank, communicator.num_ranks());
    const double raw_rate = rate(timed(communicator, [&] { write_raw(communicator, folder + "/raw", raw); }));
    if (rank == 0) remove_file(folder + "/raw");
    const double direct_rate = rate(timed(communicator, [&] { direct.directory.start_save(snapshot); }));
    direct.directory.finish();  // the older file is gone
    double collective_rate = 0;
    if (collective) {
      collective_rate = rate(timed(communicator, [&] { reference.directory.start_save(snapshot); }));
    }
    const double start_ms = 1e3 * timed(communicator, [&] { async.directory.start_save(snapshot); });
    while (!async.directory.part_is_durable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double commit_ms = 1e3 * timed(communicator, [&] { async.directory.commit_save(); });
    async.directory.finish();
    ratios.push_back(direct_rate / raw_rate);
    speeds.push_back(direct_rate);
    starts.push_back(start_ms);
    commits.push_back(commit_ms);
    if (rank == 0) {
      std::printf(
          "round %d: raw %.0f MB/s, direct %.0f MB/s (%.2f), collective %.0f MB/s, async stops %.1f + %.1f ms\n",
          round, raw_rate, direct_rate, direct_rate / raw_rate, collective_rate, start_ms, commit_ms);
      std::fflush(stdout);
    }
  }
  if (rank == 0) {
    std::printf("median: direct %.0f MB/s = %.2f of raw, async stops %.1f + %.1f ms\n", median(speeds),
                median(ratios), median(starts), median(commits));
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const bool collective = argc > 1 && std::strcmp(argv[argc - 1], "--collective") == 0;
  const int num_numbers = argc - (collective ? 1 : 0);
  if (num_numbers < 2) {
    std::fprintf(stderr, "usage: checkpoint-bench FOLDER [MEGABYTES] [ROUNDS] [--collective]\n");
    return 2;
  }
  const lockstep::MpiSession session;
  const auto communicator = lockstep::make_communicator(session, lockstep::CommunicatorKind::automatic, {});
  lockstep::run(*communicator, argv[1], num_numbers > 2 ? std::atoll(argv[2]) : 483,
                num_numbers > 3 ? std::atoi(argv[3]) : 5, collective);
  return 0;
}
