#include "io/preflight.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "io/checkpoint_file.hpp"
#include "io/hdf5_handle.hpp"
#include "io/launch_record.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

namespace {

constexpr std::int64_t elements_per_rank = 1000;

std::string in_words(std::uint64_t bytes) {
  if (bytes < 10'000'000) return text(bytes / 1000, " kB");
  if (bytes < 10'000'000'000) return text(bytes / 1'000'000, " MB");
  return text(bytes / 1'000'000'000, " GB");
}

void check_room(const std::string& folder, std::uint64_t checkpoint_bytes) {
  const std::uint64_t available = free_bytes(folder);
  if (available / 2 >= checkpoint_bytes) return;
  throw Error(ErrorKind::failed, text("the folder '", folder, "' has room for ", in_words(available),
                                      " (two checkpoints of ", in_words(checkpoint_bytes),
                                      " each must fit, the old one goes after the new one "
                                      "is checked): free space, or choose another folder"));
}

// A state of one tensor, whose parts are dealt to all ranks but the last one of several.
Snapshot probe_of(Communicator& communicator, std::vector<std::int64_t>& numbers) {
  const std::int64_t writers = std::max(1, communicator.num_ranks() - 1);
  numbers.resize(static_cast<std::size_t>(writers * elements_per_rank));
  std::iota(numbers.begin(), numbers.end(), 7);
  TensorPart part;
  part.info = {"weights", "probe", ElementType::int64, {writers, elements_per_rank}};
  part.block_elements = elements_per_rank;
  const std::int64_t first = std::min<std::int64_t>(communicator.rank(), writers);
  part.begin = first * elements_per_rank;
  part.end = std::min(first + 1, writers) * elements_per_rank;
  part.data = reinterpret_cast<std::byte*>(numbers.data() + part.begin);
  Snapshot snapshot;
  snapshot.tensors.push_back(part);
  return snapshot;
}

void check_probe(const std::string& path, const std::vector<std::int64_t>& numbers) {
  const CheckpointFile file(path);
  file.verify();
  std::vector<std::int64_t> found(numbers.size());
  file.read(0, 0, static_cast<std::int64_t>(found.size()), reinterpret_cast<std::byte*>(found.data()));
  if (found == numbers) return;
  throw Error(ErrorKind::failed, text("a small checkpoint in '", path,
                                      "' came back with other numbers (this file system "
                                      "does not do what MPI-IO needs): try --checkpoint-writer direct or collective, "
                                      "or another folder"));
}

}  // namespace

std::uint64_t checkpoint_bytes(const Snapshot& snapshot) {
  std::uint64_t bytes = 0;
  for (const TensorPart& part : snapshot.tensors) {
    bytes += static_cast<std::uint64_t>(part.info.num_elements()) * size_of(part.info.type);
  }
  return bytes;
}

std::string run_preflight(Communicator& communicator, const std::string& folder, WriterKind wanted,
                          std::uint64_t checkpoint_bytes) {
  agree(communicator, [&] {
    if (communicator.rank() == 0) check_room(folder, checkpoint_bytes);
  });
  CheckpointWriter::Settings settings;
  settings.folder = folder;
  settings.kind = resolve_writer(communicator, folder, wanted);
  CheckpointWriter writer(communicator, settings);
  std::vector<std::int64_t> numbers;
  const Snapshot probe = probe_of(communicator, numbers);
  const std::string path = folder + "/preflight.h5" + std::string(temporary_suffix);
  try {
    writer.prepare(probe, {});
    writer.start(probe, path);
    writer.seal();
    writer.commit(path);
    agree(communicator, [&] {
      if (communicator.rank() != 0) return;
      check_probe(path, numbers);
      remove_file(path);
    });
  } catch (const Error& failure) {
    writer.abandon();
    throw Error(failure.kind(), text("a trial save into '", folder, "' failed: ", failure.what()));
  }
  if (communicator.rank() != 0) return "";
  const char* const module = std::getenv("OMPI_MCA_io");
  return text(settings.kind == WriterKind::direct ? "direct" : "collective", " writer, file system ",
              file_system_type(folder), " with ", in_words(free_bytes(folder)), " free, ", hdf5_version(),
              ", MPI-IO of ", mpi_version(), module == nullptr ? "" : text(" (", module, ")"));
}

}  // namespace lockstep
