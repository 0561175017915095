#include "io/collective_writer.hpp"

#include <mpi.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "io/checkpoint_format.hpp"
#include "io/hdf5_handle.hpp"
#include "io/hdf5_selection.hpp"
#include "io/hdf5_types.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

namespace {

constexpr std::int64_t max_call_bytes = std::int64_t{1} << 30;

// A plain duplicate of MPI's world: files opened with other communicators have come out wrong under OMPIO.
class WorldDuplicate {
 public:
  WorldDuplicate() {
    if (MPI_Comm_dup(MPI_COMM_WORLD, &handle_) != MPI_SUCCESS) {
      throw Error(ErrorKind::failed, "cannot duplicate MPI's world for a collective write: start again");
    }
    MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
  }
  WorldDuplicate(const WorldDuplicate&) = delete;
  WorldDuplicate& operator=(const WorldDuplicate&) = delete;
  ~WorldDuplicate() { MPI_Comm_free(&handle_); }

  MPI_Comm get() const { return handle_; }

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
};

bool mpi_is_running() {
  int is_initialized = 0;
  int is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  return is_initialized != 0 && is_finalized == 0;
}

// How a file is opened and written: by all ranks of the world, or without MPI by one.
struct Access {
  std::optional<WorldDuplicate> world;
  Hdf5Handle file;
  Hdf5Handle transfer;
};

void set_up(Access& access, Communicator& communicator) {
  const std::string what = "cannot set up a collective write";
  access.file = Hdf5Handle(H5Pcreate(H5P_FILE_ACCESS), what);
  access.transfer = Hdf5Handle(H5Pcreate(H5P_DATASET_XFER), what);
  if (!mpi_is_running() && communicator.num_ranks() == 1) return;
  int world_ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
  if (world_ranks != communicator.num_ranks()) {
    throw Error(ErrorKind::usage, text("a collective write needs all ", world_ranks, " ranks of MPI's world (",
                                       communicator.num_ranks(), " take part): use --checkpoint-writer direct"));
  }
  access.world.emplace();
  check_hdf5(H5Pset_fapl_mpio(access.file.get(), access.world->get(), MPI_INFO_NULL), what);
  check_hdf5(H5Pset_all_coll_metadata_ops(access.file.get(), true), what);
  check_hdf5(H5Pset_dxpl_mpio(access.transfer.get(), H5FD_MPIO_COLLECTIVE), what);
}

// The calls that the rank with the most elements needs, for each tensor.
std::vector<std::int64_t> calls_for(Communicator& communicator, const Snapshot& snapshot) {
  std::vector<std::int64_t> mine;
  for (const TensorPart& part : snapshot.tensors) {
    const std::int64_t bytes = (part.end - part.begin) * static_cast<std::int64_t>(size_of(part.info.type));
    mine.push_back(std::max<std::int64_t>(1, (bytes + max_call_bytes - 1) / max_call_bytes));
  }
  const std::size_t bytes = mine.size() * sizeof(std::int64_t);
  const auto num_ranks = static_cast<std::size_t>(communicator.num_ranks());
  std::vector<std::int64_t> all(mine.size() * num_ranks);
  const std::vector<std::size_t> counts(num_ranks, bytes);
  communicator.all_gather(std::as_bytes(std::span(mine)), counts, std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) mine[i % mine.size()] = std::max(mine[i % mine.size()], all[i]);
  return mine;
}

// One call for one tensor: this rank's elements [begin, end), maybe none.
void write_elements(hid_t file, const TensorPart& part, std::int64_t begin, std::int64_t end, hid_t transfer) {
  const std::string path = section_path(part.info.section) + "/" + escape_name(part.info.name);
  const std::string what =
      text("cannot write the tensor '", part.info.name, "' of section '", part.info.section, "'");
  const Hdf5Handle dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), what);
  if (part.info.num_elements() == 0) return;
  const Hdf5Handle type = hdf5_type_of(part.info.type);
  const Hdf5Handle space(H5Dget_space(dataset.get()), what);
  select_range(space.get(), part.info.shape, begin, end);
  const auto extent = static_cast<hsize_t>(end - begin);
  const Hdf5Handle memory(H5Screate_simple(1, &extent, nullptr), what);
  if (extent == 0) check_hdf5(H5Sselect_none(memory.get()), what);
  const std::byte nothing{};
  const auto skipped_bytes = (begin - part.begin) * static_cast<std::int64_t>(size_of(part.info.type));
  const std::byte* const data = extent == 0 ? &nothing : part.data + skipped_bytes;
  check_hdf5(H5Dwrite(dataset.get(), type.get(), memory.get(), space.get(), transfer, data), what);
}

}  // namespace

void write_collectively(Communicator& communicator, const std::string& path, const Snapshot& snapshot) {
  silence_hdf5();
  const std::vector<std::int64_t> num_calls = calls_for(communicator, snapshot);
  Access access;
  agree(communicator, [&] { set_up(access, communicator); });
  const std::string what = text("cannot write into '", path, "'");
  Hdf5Handle file;
  agree(communicator, [&] { file = Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.file.get()), what); });
  for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const TensorPart& part = snapshot.tensors[i];
    const std::int64_t per_call = max_call_bytes / static_cast<std::int64_t>(size_of(part.info.type));
    std::int64_t begin = part.begin;
    for (std::int64_t call = 0; call < num_calls[i]; ++call) {
      const std::int64_t end = std::max(begin, std::min(part.end, begin + per_call));
      agree(communicator, [&] { write_elements(file.get(), part, begin, end, access.transfer.get()); });
      begin = end;
    }
  }
  agree(communicator, [&] { file.close(what); });
  agree(communicator, [&] { PosixFile(path, FileAccess::write).sync(); });
}

}  // namespace lockstep
