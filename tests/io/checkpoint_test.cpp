// What goes into a checkpoint comes out of it, whoever writes and whoever reads.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>

#include "io/checkpoint_file.hpp"
#include "io/preflight.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "tests/io/checkpoint_fixture.hpp"

namespace lockstep {
namespace {

using test::MadeState;

struct WayToWrite {
  const char* name;
  WriterKind writer;
  SaveTiming timing;
};

void PrintTo(const WayToWrite& way, std::ostream* out) { *out << way.name; }

constexpr std::array all_ways = {WayToWrite{"Direct", WriterKind::direct, SaveTiming::synchronous},
                                 WayToWrite{"Collective", WriterKind::collective, SaveTiming::synchronous},
                                 WayToWrite{"Asynchronous", WriterKind::direct, SaveTiming::asynchronous}};

class Checkpoint : public test::CheckpointTest, public ::testing::WithParamInterface<WayToWrite> {
 protected:
  Checkpoint() { place_ = test::Place::memory; }

  CheckpointOptions options() {
    CheckpointOptions out = CheckpointTest::options(GetParam().writer);
    out.timing = GetParam().timing;
    return out;
  }

  /// **Collective.** Saves one state and compares all of it.
  void expect_round_trip(MadeState& state, std::int64_t step = 40) {
    CheckpointDirectory directory(*communicator_, options());
    directory.start_save(snapshot_of(state, step));
    directory.finish();
    const auto reader = directory.open_newest();
    const bool is_there = reader != nullptr;
    ASSERT_TRUE(is_there) << messages_;
    EXPECT_EQ(reader->attributes(), state.attributes);
    ASSERT_EQ(reader->tensors().size(), state.num_tensors());
    for (std::size_t i = 0; i < state.num_tensors(); ++i) {
      EXPECT_EQ(reader->tensors()[i].name, state.info(i).name);
      EXPECT_EQ(reader->tensors()[i].section, state.info(i).section);
      EXPECT_EQ(reader->tensors()[i].type, state.info(i).type);
      EXPECT_EQ(reader->tensors()[i].shape, state.info(i).shape);
    }
    EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
  }

  /// The state's digest in the file of `step`; on one rank.
  std::uint64_t digest_in(const std::string& path) const {
    return CheckpointFile(path).catalogue().header.state_digest;
  }
};

std::string name_of_way(const ::testing::TestParamInfo<WayToWrite>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Ways, Checkpoint, ::testing::ValuesIn(all_ways), name_of_way);

class Cases : public Checkpoint {};
INSTANTIATE_TEST_SUITE_P(Ways, Cases, ::testing::ValuesIn(all_ways), name_of_way);

// On a real disk, past the page cache where that goes.
class CheckpointOnDisk : public Checkpoint {
 protected:
  CheckpointOnDisk() { place_ = test::Place::disk; }
};
INSTANTIATE_TEST_SUITE_P(Ways, CheckpointOnDisk, ::testing::ValuesIn(all_ways), name_of_way);

TEST_P(Checkpoint, ComesBackAsItWasSaved) {
  MadeState state = test::small_state();
  expect_round_trip(state);
}

TEST_P(Checkpoint, IsTheSameFileForAnyRanksAndWriter) {
  MadeState state = test::small_state();
  {
    CheckpointDirectory directory(*communicator_, options());
    directory.start_save(snapshot_of(state, 7));
    directory.finish();
  }
  on_first_rank([&] {
    OneProcessCommunicator alone;
    CheckpointOptions other = CheckpointTest::options(WriterKind::direct);
    other.directory = folder_ + "/alone";
    CheckpointDirectory(alone, other).start_save(state.snapshot(7, 0, 1));
    const std::string reference = other.directory + "/" + checkpoint_file_name(7);
    EXPECT_EQ(digest_in(path_of(7)), digest_in(reference));
    const std::string command =
        "h5diff --exclude-path /provenance/launches '" + path_of(7) + "' '" + reference + "' > " + folder_ + "/diff";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_bytes(folder_ + "/diff");
    const Catalogue mine = CheckpointFile(path_of(7)).catalogue();
    EXPECT_EQ(mine.launches.at(0).num_ranks, communicator_->num_ranks());
    EXPECT_EQ(mine.blocks, CheckpointFile(reference).catalogue().blocks);
  });
}

TEST_P(Checkpoint, KeepsScalarEmptyAndOneElementTensors) {
  MadeState state;
  state.add("weights", "scalar", ElementType::float64, {});
  state.add("weights", "empty", ElementType::float32, {0});
  state.add("weights", "one", ElementType::int16, {1, 1, 1});
  state.add("weights", "nothing", ElementType::int8, {3, 0, 2});
  state.add("weights", "complex", ElementType::complex64, {3, 5});
  state.add("buffers", "wide", ElementType::complex128, {2});
  state.add("buffers", "bytes", ElementType::uint8, {1000});
  expect_round_trip(state);
}

TEST_P(Checkpoint, MayHoldNoTensorAtAll) {
  MadeState state;
  state.attributes["progress"] = {{"epoch", std::int64_t{0}}};
  expect_round_trip(state, 0);
}

TEST_P(Checkpoint, KeepsManyBlocksThatNoDiskBlockBoundaryMeets) {
  MadeState state(96);
  for (int i = 0; i < 30; ++i) {
    const std::string name = "layer" + std::to_string(i);
    state.add("weights", name, ElementType::float32, {1 + 37 * i, 3});
    state.add("optimizer/exp_avg", name, ElementType::float32, {1 + 37 * i, 3});
    state.add("optimizer/exp_avg_sq", name, ElementType::float32, {1 + 37 * i, 3});
  }
  expect_round_trip(state);
}

TEST_P(Checkpoint, KeepsFourDimensionsCutAnywhere) {
  MadeState state(7);
  state.add("weights", "conv", ElementType::float32, {5, 3, 4, 3});
  state.add("weights", "conv2", ElementType::float64, {2, 1, 7, 5});
  expect_round_trip(state);
}

TEST_P(Checkpoint, IsReadByRanksThatAskForOtherParts) {
  MadeState state = test::small_state(3);
  save_steps({3}, options());
  CheckpointDirectory directory(*communicator_, options());
  const auto reader = directory.open(path_of(3));
  Snapshot wanted = state.snapshot(0, 0, 1);  // everything, on every rank
  std::vector<std::vector<std::byte>> buffers;
  for (TensorPart& part : wanted.tensors) {
    buffers.emplace_back(static_cast<std::size_t>(part.end) * size_of(part.info.type));
    part.data = buffers.back().data();
  }
  reader->read(wanted.tensors);
  for (std::size_t i = 0; i < buffers.size(); ++i) EXPECT_EQ(buffers[i], state.bytes(i)) << state.info(i).name;
}

TEST_P(Checkpoint, RefusesAnotherShapeOrAnUnknownName) {
  save_steps({3}, options());
  CheckpointDirectory directory(*communicator_, options());
  const auto reader = directory.open_newest();
  MadeState other;
  other.add("weights", "fc1.weight", ElementType::float32, {17, 33});
  Snapshot wanted = snapshot_of(other, 0);
  EXPECT_THROW(reader->read(wanted.tensors), Error);
  wanted.tensors[0].info.name = "fc9.weight";
  EXPECT_THROW(reader->read(wanted.tensors), Error);
}

TEST_P(Checkpoint, HandsTheLaunchesOnFromFileToFile) {
  save_steps({3}, options());
  {
    CheckpointDirectory directory(*communicator_, options());
    directory.open_newest();
    MadeState state = test::small_state(5);
    directory.start_save(snapshot_of(state, 5));
    directory.finish();
  }
  on_first_rank([&] {
    const Catalogue catalogue = CheckpointFile(path_of(5)).catalogue();
    ASSERT_EQ(catalogue.launches.size(), 2u);
    EXPECT_EQ(catalogue.launches[0].from_step, 0);
    EXPECT_EQ(catalogue.launches[1].from_step, 3);
    EXPECT_EQ(catalogue.launches[1].num_ranks, communicator_->num_ranks());
  });
}

TEST_P(Checkpoint, MayBeSavedTwice) {
  save_steps({3, 3}, options());
  EXPECT_EQ(newest_step(), 3);
}

TEST_P(Checkpoint, MayChangeItsTensorsBetweenSaves) {
  MadeState first = test::small_state();
  MadeState second = test::small_state();
  second.add("weights", "grown", ElementType::float32, {10});
  CheckpointDirectory directory(*communicator_, options());
  directory.start_save(snapshot_of(first, 1));
  directory.start_save(snapshot_of(second, 2));
  directory.finish();
  const auto reader = directory.open_newest();
  EXPECT_EQ(test::differences(*communicator_, *reader, second), "");
}

TEST_P(Checkpoint, RefusesPartsThatDoNotCoverTheState) {
  MadeState state;
  state.add("weights", "w", ElementType::float32, {256});
  CheckpointDirectory directory(*communicator_, options());
  Snapshot gap = snapshot_of(state, 1);
  if (is_first()) gap.tensors[0].end = 0;
  EXPECT_THROW(
      {
        directory.start_save(gap);
        directory.finish();
      },
      Error);
  EXPECT_EQ(directory.open_newest(), nullptr);
}

TEST_P(Checkpoint, RefusesNamesThatCollide) {
  MadeState state;
  state.add("weights", "w", ElementType::float32, {4});
  state.add("weights", "w", ElementType::float32, {4});
  CheckpointDirectory directory(*communicator_, options());
  EXPECT_THROW(directory.start_save(snapshot_of(state, 1)), Error);
  EXPECT_EQ(directory.open_newest(), nullptr);
}

TEST_P(CheckpointOnDisk, LeavesTheStateFreeToChangeOnceItIsCopied) {
  MadeState state(1024);
  state.add("weights", "w", ElementType::float32, {2000000});
  state.add("buffers", "b", ElementType::int64, {11});
  MadeState changing = state;
  CheckpointDirectory directory(*communicator_, options());
  for (std::int64_t step = 1; step <= 3; ++step) {
    Snapshot snapshot = snapshot_of(changing, step);
    directory.start_save(snapshot);
    directory.wait_until_copied();
    for (const TensorPart& part : snapshot.tensors) {  // from its end: what is copied last goes first
      const std::int64_t num_bytes = (part.end - part.begin) * static_cast<std::int64_t>(size_of(part.info.type));
      std::fill_n(std::make_reverse_iterator(part.data + num_bytes), num_bytes, std::byte{0xEE});
    }
    // As the run does: it asks now and then, and goes on with the save when all ranks are ready.
    for (int move = 0; GetParam().timing == SaveTiming::asynchronous && move < 2; ++move) {
      while (!directory.part_is_durable()) {
      }
      directory.commit_save();
    }
    EXPECT_FALSE(directory.part_is_durable());
    const auto reader = directory.open_newest();
    const bool is_there = reader != nullptr;
    ASSERT_TRUE(is_there);
    EXPECT_EQ(reader->path(), path_of(step));
    EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
    changing = state;
  }
}

/// The bytes of a snapshot, away until they are asked for: as a device's, whose copy is under way.
class BytesUnderWay {
 public:
  explicit BytesUnderWay(Snapshot& snapshot) {
    for (const TensorPart& part : snapshot.tensors) {
      const auto num_bytes = static_cast<std::size_t>(part.end - part.begin) * size_of(part.info.type);
      bytes_.emplace_back(part.data, std::vector<std::byte>(part.data, part.data + num_bytes));
      std::fill_n(part.data, num_bytes, std::byte{0xEE});
    }
    snapshot.wait_for_bytes = [this] { arrive(); };
  }

 private:
  void arrive() const {
    for (const auto& [place, bytes] : bytes_) std::copy(bytes.begin(), bytes.end(), place);
  }

  std::vector<std::pair<std::byte*, std::vector<std::byte>>> bytes_;
};

TEST_P(Checkpoint, TakesBytesThatAreStillComing) {
  MadeState state = test::small_state(4);
  MadeState coming = state;
  CheckpointDirectory directory(*communicator_, options());
  Snapshot snapshot = snapshot_of(coming, 4);
  const BytesUnderWay bytes(snapshot);
  directory.start_save(snapshot);
  directory.finish();
  const auto reader = directory.open_newest();
  const bool is_there = reader != nullptr;
  ASSERT_TRUE(is_there);
  EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
}

TEST_P(Checkpoint, IsNotMadeOfBytesThatNeverCome) {
  save_steps({3}, options());
  {
    CheckpointOptions going_on = options();
    going_on.on_save_failure = OnSaveFailure::keep_going;
    CheckpointDirectory directory(*communicator_, going_on);
    MadeState state = test::small_state(4);
    Snapshot snapshot = snapshot_of(state, 4);
    if (communicator_->rank() == communicator_->num_ranks() - 1)
      snapshot.wait_for_bytes = [] { throw std::runtime_error("the device has gone"); };
    directory.start_save(snapshot);
    EXPECT_FALSE(directory.finish());
  }
  if (is_first()) {
    EXPECT_NE(messages_.find("the device has gone"), std::string::npos) << messages_;
  }
  EXPECT_EQ(newest_step(), 3);
}

TEST_P(Checkpoint, DoesNotExistBeforeItIsCommitted) {
  MadeState state = test::small_state(8);
  {
    CheckpointDirectory directory(*communicator_, options());
    directory.start_save(snapshot_of(state, 8));
    if (GetParam().timing == SaveTiming::asynchronous) {
      EXPECT_EQ(directory.open_newest(), nullptr);
    }
    // Goes without finish(): the save is dropped, its file is a leftover.
  }
  EXPECT_EQ(newest_step(), GetParam().timing == SaveTiming::asynchronous ? -1 : 8);
}

TEST_P(Checkpoint, PassesThePreflight) {
  on_first_rank([&] { make_folder(run_folder()); });
  const std::string line = run_preflight(*communicator_, run_folder(), GetParam().writer, 1000);
  EXPECT_EQ(line.empty(), !is_first());
  if (is_first()) {
    EXPECT_NE(line.find("HDF5"), std::string::npos) << line;
    EXPECT_TRUE(names_in_run_folder().empty());
  }
  EXPECT_THROW(run_preflight(*communicator_, run_folder(), GetParam().writer, std::uint64_t{1} << 60), Error);
}

TEST_P(Cases, C069ARankWithoutRows) {
  MadeState state(4);  // two rows of one block each: of three ranks one has none
  state.add("weights", "w", ElementType::float32, {2, 4});
  expect_round_trip(state);
}

TEST_P(Cases, C072AwkwardParameterNames) {
  MadeState state;
  std::uint64_t seed = 0;
  for (const std::string& name : {std::string("x"), std::string("x/y"), std::string("a/b"), std::string("a/./b"),
                                  std::string("a//b"), std::string("."), std::string(".."), std::string("/lead"),
                                  std::string("trail/"), std::string("enc.0.weight"), std::string("sp ace"),
                                  std::string("gr\xc3\xbc\xc3\x9f"
                                              "e \xe2\x88\x91"),
                                  std::string(300, 'n'), std::string()}) {
    for (const char* section : {"weights", "optimizer/exp_avg"})
      state.add(section, name, ElementType::float32, {3}, ++seed);
  }
  state.add_alias("weights", "tied/to.x", "x/y");
  expect_round_trip(state);
  on_first_rank([&] {
    const CheckpointFile file(path_of(40));
    EXPECT_EQ(file.find("weights", "tied/to.x"), file.find("weights", "x/y"));
    EXPECT_NE(file.find("weights", "a/./b"), file.find("weights", "a/b"));
  });
}

TEST_P(Cases, C073NamesAndListsBeyond64KiB) {
  MadeState state(4096);
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 4 - number.size(), '0');
    names.push_back("encoder.layers." + number + ".weight");
  }
  // 5000 tensors where that is cheap; the names' list in any case.
  const int num_tensors = std::string(GetParam().name) == "Direct" ? 5000 : 200;
  for (int i = 0; i < num_tensors; ++i)
    state.add("weights", names[static_cast<std::size_t>(i)], ElementType::float32, {2});
  std::vector<std::int64_t> numbers(10000);
  std::iota(numbers.begin(), numbers.end(), 0);
  state.attributes["options"] = {{"names", names}, {"numbers", numbers}, {"long", std::string(100000, 'x')}};
  expect_round_trip(state);
}

TEST_P(Cases, C074SixteenBitTypesKeepTheirBits) {
  std::vector<std::byte> patterns(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto pattern = static_cast<std::uint16_t>(i);
    std::memcpy(patterns.data() + 2 * i, &pattern, 2);
  }
  MadeState state(4096);
  state.add("weights", "half", ElementType::float16, {65536}, patterns);
  state.add("weights", "brain", ElementType::bfloat16, {256, 256}, patterns);
  expect_round_trip(state);
}

// A communicator of MPI_Cart_create has put blocks in wrong places; files are opened with a plain duplicate instead.
TEST_P(Cases, C082CartesianCommunicatorUnderOmpio) {
  const int num_ranks = communicator_->num_ranks();
  const int extents[] = {1, num_ranks};
  const int are_periodic[] = {0, 0};
  MPI_Comm grid = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Cart_create(MPI_COMM_WORLD, 2, extents, are_periodic, 0, &grid), MPI_SUCCESS);
  MadeState state(32);
  state.add("weights", "w", ElementType::float32, {30, 20});
  state.add("weights", "v", ElementType::float32, {6, 40});
  {
    const MpiSession session(grid);
    const auto on_grid = make_communicator(session, CommunicatorKind::mpi, {});
    CheckpointDirectory directory(*on_grid, options());
    directory.start_save(state.snapshot(1, on_grid->rank(), num_ranks));
    directory.finish();
  }
  MPI_Comm_free(&grid);
  const auto reader = open_checkpoint(*communicator_, path_of(1));
  EXPECT_EQ(test::differences(*communicator_, *reader, state), "");
}

}  // namespace
}  // namespace lockstep
