#include "io/checkpoint_skeleton.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "io/digest.hpp"
#include "io/hdf5_attributes.hpp"
#include "io/hdf5_handle.hpp"
#include "io/hdf5_types.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

namespace {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::array<Range, 3> metadata_ranges(const CheckpointHeader& header) {
  return {{{header_bytes, header.blocks_begin},
           {header.blocks_end(), header.data_begin},
           {header.data_end, header.file_bytes}}};
}

Hdf5Handle without_times(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), "cannot make an HDF5 property list");
  check_hdf5(H5Pset_obj_track_times(list.get(), false), "cannot turn HDF5 timestamps off");
  return list;
}

Hdf5Handle dataset_properties() {
  Hdf5Handle list = without_times(H5P_DATASET_CREATE);
  check_hdf5(H5Pset_layout(list.get(), H5D_CONTIGUOUS), "cannot ask for contiguous data");
  check_hdf5(H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY), "cannot ask for early allocation");
  check_hdf5(H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER), "cannot turn filling off");
  return list;
}

// Opens or creates groups along a path such as "/optimizer/exp_avg".
class Groups {
 public:
  explicit Groups(hid_t file) : file_(file), properties_(without_times(H5P_GROUP_CREATE)) {}

  Hdf5Handle open(const std::string& path) {
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      const std::string what = text("cannot create the group '", part, "' (is a tensor called so?)");
      if (made_.insert(part).second && H5Lexists(file_, part.c_str(), H5P_DEFAULT) <= 0) {
        Hdf5Handle(H5Gcreate2(file_, part.c_str(), H5P_DEFAULT, properties_.get(), H5P_DEFAULT), what);
      }
      if (end == std::string::npos) break;
    }
    return Hdf5Handle(H5Gopen2(file_, path.c_str(), H5P_DEFAULT), text("cannot open the group '", path, "'"));
  }

 private:
  hid_t file_;
  Hdf5Handle properties_;
  std::set<std::string> made_;
};

Hdf5Handle fixed_text(std::size_t bytes) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), "cannot make an HDF5 text type");
  check_hdf5(H5Tset_size(type.get(), std::max<std::size_t>(bytes, 1)), "cannot size an HDF5 text type");
  check_hdf5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "cannot make an HDF5 text type");
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), "cannot make an HDF5 text type");
  return type;
}

// A table of rows of texts and numbers, built column by column, stored as a compound dataset.
class Table {
 public:
  explicit Table(std::size_t num_rows) : num_rows_(num_rows) {}

  void add_texts(const char* name, std::vector<std::string> values) {
    std::size_t width = 1;
    for (const std::string& value : values) width = std::max(width, value.size());
    for (std::string& value : values) value.resize(width, '\0');
    columns_.push_back({name, fixed_text(width), width, std::move(values)});
  }

  void add_numbers(const char* name, const std::vector<std::int64_t>& values) {
    std::vector<std::string> cells;
    for (const std::int64_t value : values) cells.emplace_back(reinterpret_cast<const char*>(&value), sizeof value);
    columns_.push_back({name, Hdf5Handle(H5Tcopy(H5T_STD_I64LE), "cannot make a type"), 8, std::move(cells)});
  }

  void write(hid_t file, const char* path) const {
    const std::string what = text("cannot write the table '", path, "'");
    std::size_t row_bytes = 0;
    for (const Column& column : columns_) row_bytes += column.width;
    const Hdf5Handle type(H5Tcreate(H5T_COMPOUND, row_bytes), what);
    std::string rows(row_bytes * num_rows_, '\0');
    std::size_t at = 0;
    for (const Column& column : columns_) {
      check_hdf5(H5Tinsert(type.get(), column.name, at, column.type.get()), what);
      for (std::size_t i = 0; i < num_rows_; ++i) {
        column.cells[i].copy(rows.data() + i * row_bytes + at, column.width);
      }
      at += column.width;
    }
    const hsize_t extent = num_rows_;
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), what);
    const Hdf5Handle properties = without_times(H5P_DATASET_CREATE);
    const Hdf5Handle dataset(
        H5Dcreate2(file, path, type.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), what);
    if (num_rows_ > 0) {
      check_hdf5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data()), what);
    }
  }

 private:
  struct Column {
    const char* name;
    Hdf5Handle type;
    std::size_t width;
    std::vector<std::string> cells;
  };

  std::size_t num_rows_;
  std::vector<Column> columns_;
};

std::string path_of(const TensorInfo& info) { return section_path(info.section) + "/" + escape_name(info.name); }

void write_tensors_table(hid_t file, const std::vector<StoredTensor>& tensors) {
  std::vector<std::string> paths;
  std::vector<std::int64_t> block_elements;
  std::vector<std::int64_t> block_phases;
  for (const StoredTensor& tensor : tensors) {
    paths.push_back(path_of(tensor.info));
    block_elements.push_back(tensor.block_elements);
    block_phases.push_back(tensor.block_phase);
  }
  Table table(tensors.size());
  table.add_texts("path", std::move(paths));
  table.add_numbers("block_elements", block_elements);
  table.add_numbers("block_phase", block_phases);
  table.write(file, tensors_table);
}

void write_launches_table(hid_t file, const std::vector<LaunchRecord>& launches) {
  std::vector<std::string> started;
  std::vector<std::int64_t> from_steps;
  std::vector<std::int64_t> num_ranks;
  std::vector<std::string> hosts;
  std::vector<std::string> versions;
  for (const LaunchRecord& launch : launches) {
    started.push_back(launch.started);
    from_steps.push_back(launch.from_step);
    num_ranks.push_back(launch.num_ranks);
    hosts.push_back(launch.hosts);
    versions.push_back(launch.versions);
  }
  Table table(launches.size());
  table.add_texts("started", std::move(started));
  table.add_numbers("from_step", from_steps);
  table.add_numbers("num_ranks", num_ranks);
  table.add_texts("hosts", std::move(hosts));
  table.add_texts("versions", std::move(versions));
  table.write(file, launches_table);
}

Hdf5Handle block_row_type() {
  const std::string what = "cannot make the type of the table of blocks";
  Hdf5Handle type(H5Tcreate(H5T_COMPOUND, sizeof(BlockRow)), what);
  check_hdf5(H5Tinsert(type.get(), "tensor", HOFFSET(BlockRow, tensor), H5T_STD_U64LE), what);
  check_hdf5(H5Tinsert(type.get(), "first_element", HOFFSET(BlockRow, first_element), H5T_STD_U64LE), what);
  check_hdf5(H5Tinsert(type.get(), "num_bytes", HOFFSET(BlockRow, num_bytes), H5T_STD_U64LE), what);
  check_hdf5(H5Tinsert(type.get(), "digest", HOFFSET(BlockRow, digest), H5T_STD_U64LE), what);
  return type;
}

// Groups, tables and the rows' space; returns where the rows will be.
std::uint64_t write_tables(const std::string& path, const std::vector<StoredTensor>& tensors, std::size_t num_blocks,
                           const std::vector<LaunchRecord>& launches) {
  const std::string what = text("cannot create '", path, "'");
  const Hdf5Handle creation = without_times(H5P_FILE_CREATE);
  check_hdf5(H5Pset_userblock(creation.get(), header_bytes), what);
  Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), H5P_DEFAULT), what);
  const Hdf5Handle root(H5Gopen2(file.get(), "/", H5P_DEFAULT), what);
  write_attribute(root.get(), "format", std::string("lockstep-checkpoint"));
  write_attribute(root.get(), "format_version", format_version);
  Groups groups(file.get());
  groups.open(text("/", integrity_group));
  groups.open(text("/", provenance_group));
  write_tensors_table(file.get(), tensors);
  write_launches_table(file.get(), launches);
  const hsize_t extent = num_blocks;
  const Hdf5Handle type = block_row_type();
  const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), what);
  const Hdf5Handle properties = dataset_properties();
  Hdf5Handle rows(
      H5Dcreate2(file.get(), blocks_table, type.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
      what);
  const std::uint64_t blocks_begin = num_blocks == 0 ? header_bytes : H5Dget_offset(rows.get());
  rows.close(what);
  file.close(what);
  return blocks_begin;
}

// HDF5 hands out metadata and small pieces of raw data from two blocks, in the order of the first requests: with a
// data block as large as all tensors they lie one after the other, and with a metadata block that ends on a disk
// block they begin on one.
Hdf5Handle packing_access(std::uint64_t file_bytes, std::uint64_t data_bytes, std::size_t num_tensors) {
  const std::string what = "cannot make an HDF5 property list";
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), what);
  check_hdf5(H5Pset_small_data_block_size(access.get(), data_bytes + 1), what);
  const std::uint64_t wanted_end = file_bytes + 4096 + 640 * num_tensors;
  const std::uint64_t end = (wanted_end + disk_block_bytes - 1) / disk_block_bytes * disk_block_bytes;
  check_hdf5(H5Pset_meta_block_size(access.get(), end - file_bytes), what);
  return access;
}

void create_tensors(const std::string& path, std::vector<StoredTensor>& tensors,
                    const std::vector<TensorAlias>& aliases, std::uint64_t data_bytes) {
  const std::string opening = text("cannot open '", path, "' again");
  const std::uint64_t file_bytes = PosixFile(path, FileAccess::read).size();
  const Hdf5Handle access = packing_access(file_bytes, data_bytes, tensors.size());
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), opening);
  Groups groups(file.get());
  const Hdf5Handle properties = dataset_properties();
  for (StoredTensor& tensor : tensors) {
    const std::string what = text("cannot create the dataset of tensor '", tensor.info.name, "' in section '",
                                  tensor.info.section, "' (is the name there already?)");
    const Hdf5Handle group = groups.open(section_path(tensor.info.section));
    const Hdf5Handle type = hdf5_type_of(tensor.info.type);
    const std::vector<hsize_t> extents(tensor.info.shape.begin(), tensor.info.shape.end());
    const Hdf5Handle space(extents.empty()
                               ? H5Screate(H5S_SCALAR)
                               : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                           what);
    const std::string link = escape_name(tensor.info.name);
    Hdf5Handle dataset(
        H5Dcreate2(group.get(), link.c_str(), type.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
        what);
    if (link != tensor.info.name) write_attribute(dataset.get(), "name", tensor.info.name);
    if (tensor.num_bytes() > 0) tensor.offset = H5Dget_offset(dataset.get());
  }
  for (const TensorAlias& alias : aliases) {
    const std::string what = text("cannot create the alias '", alias.alias, "' in section '", alias.section, "'");
    const Hdf5Handle group = groups.open(section_path(alias.section));
    const std::string target = section_path(alias.section) + "/" + escape_name(alias.name);
    check_hdf5(
        H5Lcreate_soft(target.c_str(), group.get(), escape_name(alias.alias).c_str(), H5P_DEFAULT, H5P_DEFAULT),
        what);
  }
  file.close(text("cannot finish '", path, "'"));
}

// A file of `bytes` bytes that the disk has room for. File systems that cannot promise it are taken at their word.
void create_with_room(const std::string& path, std::uint64_t bytes) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_system_failure("create", path, errno);
  int number = ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  constexpr std::uint64_t attributes_bytes = std::uint64_t{1} << 20;
  if (number == 0 &&
      ::fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes + attributes_bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT)) {
    number = errno;
  }
  ::close(descriptor);
  if (number != 0) throw_system_failure(text("make room for ", bytes, " bytes in"), path, number);
}

void add_attributes(const std::string& path, std::int64_t step, const AttributeTree& attributes) {
  const std::string what = text("cannot write the attributes of '", path, "'");
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), what);
  {
    Groups groups(file.get());
    const Hdf5Handle root(H5Gopen2(file.get(), "/", H5P_DEFAULT), what);
    write_attribute(root.get(), "step", step);
    for (const auto& [name, values] : attributes) {
      if (values.empty()) continue;
      const Hdf5Handle group = groups.open(section_path(name));
      write_attribute_group(group.get(), values);
    }
  }
  file.close(what);
}

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

}  // namespace

CheckpointSkeleton::CheckpointSkeleton(const std::string& folder, std::vector<StoredTensor> tensors,
                                       std::vector<TensorAlias> aliases, const std::vector<LaunchRecord>& launches)
    : tensors_(std::move(tensors)) {
  silence_hdf5();
  const std::string path = folder + "/skeleton.h5" + std::string(temporary_suffix);
  remove_file(path);
  const std::vector<BlockRow> rows = cut_into_blocks(tensors_);
  std::uint64_t data_bytes = 0;
  for (const StoredTensor& tensor : tensors_) data_bytes += tensor.num_bytes();
  layout_.num_blocks = rows.size();
  layout_.blocks_begin = write_tables(path, tensors_, rows.size(), launches);
  create_tensors(path, tensors_, aliases, data_bytes);
  const PosixFile file(path, FileAccess::read);
  layout_.file_bytes = file.size();
  layout_.data_begin = layout_.file_bytes;
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.num_bytes() == 0) continue;
    layout_.data_begin = std::min(layout_.data_begin, tensor.offset);
    layout_.data_end = std::max(layout_.data_end, tensor.offset + tensor.num_bytes());
  }
  layout_.data_end = std::max(layout_.data_end, layout_.data_begin);
  for (const Range range : metadata_ranges(layout_)) {
    Extent extent{range.begin, std::string(range.end - range.begin, '\0')};
    file.read_at(bytes_of(extent.bytes), extent.offset);
    metadata_.push_back(std::move(extent));
  }
  remove_file(path);
}

CheckpointHeader CheckpointSkeleton::stamp(const std::string& path, std::int64_t step,
                                           const AttributeTree& attributes) const {
  remove_file(path);
  create_with_room(path, layout_.file_bytes);
  {
    PosixFile file(path, FileAccess::write);
    for (const Extent& extent : metadata_) {
      file.write_at(std::as_bytes(std::span(extent.bytes.data(), extent.bytes.size())), extent.offset);
    }
  }
  add_attributes(path, step, attributes);
  CheckpointHeader header = layout_;
  header.step = step;
  header.file_bytes = PosixFile(path, FileAccess::read).size();
  header.metadata_digest = metadata_digest(path, header);
  return header;
}

std::uint64_t metadata_digest(const std::string& path, const CheckpointHeader& header) {
  constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  const PosixFile file(path, FileAccess::read);
  Digest digest;
  std::vector<std::byte> buffer;
  for (const Range range : metadata_ranges(header)) {
    for (std::uint64_t at = range.begin; at < range.end; at += piece_bytes) {
      buffer.resize(std::min(piece_bytes, range.end - at));
      if (file.read_at(buffer, at) != buffer.size()) {
        throw DamagedCheckpoint(text("'", path, "' is cut: it ends before byte ", at + buffer.size()));
      }
      digest.add_bytes(buffer);
    }
  }
  return digest.value();
}

}  // namespace lockstep
