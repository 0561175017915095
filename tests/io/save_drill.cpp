// A run made of nothing but saves: its state follows from the step, so that any loss shows at the end.
//
//   save-drill FOLDER NUM_STEPS SAVE_EVERY [--async] [--keep-going] [--collective] [--slow] [--inject TEXT]
//
// Goes on from the newest checkpoint, prints "resumed STEP" and at the end "final DIGEST". Started by mpirun or
// alone.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_file.hpp"
#include "io/digest.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_session.hpp"
#include "runtime/comm/one_process_communicator.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t num_elements = 200000;
constexpr std::int64_t block_elements = 1024;

struct Arguments {
  std::string folder;
  std::int64_t num_steps = 0;
  std::int64_t save_every = 0;
  bool is_slow = false;
  CheckpointOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  if (argc < 4) throw Error(ErrorKind::usage, "usage: save-drill FOLDER NUM_STEPS SAVE_EVERY [...]");
  out.options.directory = argv[1];
  out.num_steps = std::atoll(argv[2]);
  out.save_every = std::atoll(argv[3]);
  out.options.writer = WriterKind::direct;
  for (int i = 4; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--async") out.options.timing = SaveTiming::asynchronous;
    if (flag == "--collective") out.options.writer = WriterKind::collective;
    if (flag == "--keep-going") out.options.on_save_failure = OnSaveFailure::keep_going;
    if (flag == "--slow") out.is_slow = true;
    if (flag == "--inject") out.options.inject = SaveFault::parse(argv[++i]);
  }
  out.options.retention.total_limit = 2;
  return out;
}

// The rank's slice of two tensors, and how a step changes it.
class State {
 public:
  State(int rank, int num_ranks) {
    const std::int64_t num_blocks = (num_elements + block_elements - 1) / block_elements;
    begin_ = std::min(num_elements, num_blocks * rank / num_ranks * block_elements);
    end_ = std::min(num_elements, num_blocks * (rank + 1) / num_ranks * block_elements);
    for (auto& tensor : tensors_) tensor.assign(static_cast<std::size_t>(end_ - begin_), 1);
  }

  void take_step(std::int64_t step) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::uint64_t position = static_cast<std::uint64_t>(begin_) + 77 * t;
      for (std::uint64_t& element : tensors_[t]) {
        element = element * 6364136223846793005u + static_cast<std::uint64_t>(step) + position++;
      }
    }
  }

  Snapshot snapshot(std::int64_t step) {
    Snapshot out;
    out.step = step;
    out.attributes["progress"] = {{"steps_taken", step}};
    const char* const sections[] = {"weights", "optimizer/exp_avg"};
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      TensorPart part;
      part.info = {sections[t], "w", ElementType::int64, {num_elements}};
      part.begin = begin_;
      part.end = end_;
      part.data = reinterpret_cast<std::byte*>(tensors_[t].data());
      part.block_elements = block_elements;
      out.tensors.push_back(part);
    }
    return out;
  }

 private:
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::array<std::vector<std::uint64_t>, 2> tensors_;
};

bool all_are_durable(Communicator& communicator, CheckpointStore& store) {
  for (const std::string& word : gather_texts(communicator, store.part_is_durable() ? "y" : "n")) {
    if (word != "y") return false;
  }
  return true;
}

void run(Communicator& communicator, const Arguments& arguments) {
  CheckpointDirectory store(communicator, arguments.options);
  State state(communicator.rank(), communicator.num_ranks());
  std::int64_t step = 0;
  if (const auto reader = store.open_newest()) {
    step = attribute<std::int64_t>(reader->attributes(), "progress", "steps_taken");
    Snapshot wanted = state.snapshot(step);
    reader->read(wanted.tensors);
  }
  if (communicator.rank() == 0) std::printf("resumed %lld\n", static_cast<long long>(step));
  std::fflush(stdout);
  while (step < arguments.num_steps) {
    store.wait_until_copied();
    state.take_step(step++);
    if (arguments.is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (all_are_durable(communicator, store)) store.commit_save();
    if (step % arguments.save_every == 0 || step == arguments.num_steps) store.start_save(state.snapshot(step));
  }
  store.finish();
  if (communicator.rank() != 0) return;
  const CheckpointFile last(arguments.options.directory + "/" + checkpoint_file_name(step));
  last.verify();
  std::printf("final %s\n", hexadecimal(last.catalogue().header.state_digest).c_str());
}

int main_of(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
      OneProcessCommunicator alone;
      run(alone, arguments);
    } else {
      const MpiSession session;
      const auto communicator = make_communicator(session, CommunicatorKind::automatic, {});
      run(*communicator, arguments);
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::main_of(argc, argv); }
