#include "io/catalogue_reader.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "io/hdf5_attributes.hpp"
#include "io/hdf5_handle.hpp"
#include "io/hdf5_types.hpp"

namespace lockstep {

namespace {

[[noreturn]] void throw_damaged(const std::string& path, const std::string& why) {
  throw DamagedCheckpoint(text("'", path, "' ", why));
}

// A table of compound rows, read as they lie in the file.
class Table {
 public:
  Table(hid_t file, const char* path) {
    const std::string what = text("cannot read the table '", path, "'");
    const Hdf5Handle dataset(H5Dopen2(file, path, H5P_DEFAULT), what);
    type_ = Hdf5Handle(H5Dget_type(dataset.get()), what);
    const Hdf5Handle space(H5Dget_space(dataset.get()), what);
    num_rows_ = static_cast<std::size_t>(check_hdf5(H5Sget_simple_extent_npoints(space.get()), what));
    row_bytes_ = H5Tget_size(type_.get());
    rows_.resize(num_rows_ * row_bytes_);
    if (num_rows_ > 0) {
      check_hdf5(H5Dread(dataset.get(), type_.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows_.data()), what);
    }
  }

  std::size_t num_rows() const { return num_rows_; }

  std::string text_at(std::size_t row, const char* column) const {
    const std::string cell(cell_at(row, column));
    return cell.substr(0, cell.find('\0'));
  }

  std::int64_t number_at(std::size_t row, const char* column) const {
    std::int64_t value = 0;
    const std::string_view cell = cell_at(row, column);
    cell.copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }

 private:
  std::string_view cell_at(std::size_t row, const char* column) const {
    const std::string what = text("cannot find the column '", column, "'");
    const int index = check_hdf5(H5Tget_member_index(type_.get(), column), what);
    const Hdf5Handle member(H5Tget_member_type(type_.get(), static_cast<unsigned>(index)), what);
    const std::size_t at = H5Tget_member_offset(type_.get(), static_cast<unsigned>(index));
    return std::string_view(rows_).substr(row * row_bytes_ + at, H5Tget_size(member.get()));
  }

  Hdf5Handle type_;
  std::size_t num_rows_ = 0;
  std::size_t row_bytes_ = 0;
  std::string rows_;
};

// Refuses shapes of more than the file holds before anybody makes room for them.
void check_shape(const StoredTensor& tensor, const CheckpointHeader& header, const std::string& path) {
  std::uint64_t room = (header.data_end - header.data_begin) / size_of(tensor.info.type);
  const auto& shape = tensor.info.shape;
  if (std::find(shape.begin(), shape.end(), 0) == shape.end()) {
    for (const std::int64_t extent : shape) room = extent < 0 ? 0 : room / static_cast<std::uint64_t>(extent);
    if (room == 0) throw_damaged(path, text("names more elements in tensor '", tensor.info.name, "' than it holds"));
  }
}

// The same for cuts.
void check_blocks(const StoredTensor& tensor, const CheckpointHeader& header, const std::string& path) {
  if (tensor.block_elements <= 0 || static_cast<std::uint64_t>(tensor.blocks().count()) > header.num_blocks) {
    throw_damaged(path, text("cuts tensor '", tensor.info.name, "' into more blocks than it has digests"));
  }
}

StoredTensor read_tensor(hid_t file, const std::string& link_path, const CheckpointHeader& header,
                         const std::string& path) {
  const std::size_t slash = link_path.rfind('/');
  if (slash == std::string::npos || slash == 0) throw_damaged(path, text("names a tensor '", link_path, "'"));
  StoredTensor tensor;
  tensor.info.section = section_of_path(std::string_view(link_path).substr(0, slash));
  tensor.info.name = unescape_name(std::string_view(link_path).substr(slash + 1));
  const std::string what = text("cannot read the dataset '", link_path, "' of '", path, "'");
  const Hdf5Handle dataset(H5Dopen2(file, link_path.c_str(), H5P_DEFAULT), what);
  const Hdf5Handle type(H5Dget_type(dataset.get()), what);
  const Hdf5Handle space(H5Dget_space(dataset.get()), what);
  const auto element = element_type_of(type.get());
  if (!element) throw_damaged(path, text("has elements of an unknown type in '", link_path, "'"));
  tensor.info.type = *element;
  std::vector<hsize_t> extents(static_cast<std::size_t>(check_hdf5(H5Sget_simple_extent_ndims(space.get()), what)));
  if (!extents.empty()) check_hdf5(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), what);
  for (const hsize_t extent : extents) tensor.info.shape.push_back(static_cast<std::int64_t>(extent));
  check_shape(tensor, header, path);
  if (tensor.num_bytes() > 0) tensor.offset = H5Dget_offset(dataset.get());
  return tensor;
}

struct Links {
  std::vector<std::string> hard;
  std::vector<std::string> soft;
};

herr_t collect_link(hid_t /*group*/, const char* name, const H5L_info_t* info, void* out) {
  auto& links = *static_cast<Links*>(out);
  (info->type == H5L_TYPE_SOFT ? links.soft : links.hard).emplace_back(name);
  return 0;
}

std::string soft_target(hid_t group, const std::string& name) {
  const std::string what = text("cannot read the link '", name, "'");
  H5L_info_t info = {};
  check_hdf5(H5Lget_info(group, name.c_str(), &info, H5P_DEFAULT), what);
  std::string target(info.u.val_size, '\0');
  check_hdf5(H5Lget_val(group, name.c_str(), target.data(), target.size(), H5P_DEFAULT), what);
  return target.substr(0, target.find('\0'));
}

// Walks over the groups: their attributes, long lists and soft links. Tensors are known by their paths.
class GroupWalk {
 public:
  GroupWalk(hid_t file, Catalogue& catalogue, const std::set<std::string>& tensor_paths)
      : file_(file), catalogue_(catalogue), tensor_paths_(tensor_paths) {}

  void visit(const std::string& group_path) {
    const std::string what = text("cannot read the group '", group_path, "/'");
    const Hdf5Handle group(H5Gopen2(file_, group_path.empty() ? "/" : group_path.c_str(), H5P_DEFAULT), what);
    const std::string section = section_of_path(group_path);
    AttributeGroup values;
    if (!group_path.empty()) values = read_attributes(group.get());
    Links links;
    check_hdf5(H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &links), what);
    for (const std::string& link : links.soft) {
      const std::string target = soft_target(group.get(), link);
      const std::string name = target.substr(target.rfind('/') + 1);
      catalogue_.aliases.push_back({section, unescape_name(link), unescape_name(name)});
    }
    for (const std::string& link : links.hard) {
      const std::string path = group_path + "/" + link;
      if (path == text("/", integrity_group) || path == launches_table || tensor_paths_.count(path) != 0) continue;
      const Hdf5Handle object(H5Oopen(group.get(), link.c_str(), H5P_DEFAULT), what);
      if (H5Iget_type(object.get()) == H5I_GROUP) {
        visit(path);
      } else {
        values[unescape_name(link)] = read_list(object.get(), link);
      }
    }
    if (!values.empty()) catalogue_.attributes[section] = std::move(values);
  }

 private:
  hid_t file_;
  Catalogue& catalogue_;
  const std::set<std::string>& tensor_paths_;
};

}  // namespace

void read_hdf5_catalogue(const std::string& path, Catalogue& catalogue) {
  const Hdf5Handle file = open_hdf5_file(path);
  const Table tensors(file.get(), tensors_table);
  std::set<std::string> tensor_paths;
  std::uint64_t num_blocks = 0;
  for (std::size_t i = 0; i < tensors.num_rows(); ++i) {
    const std::string link_path = tensors.text_at(i, "path");
    StoredTensor tensor = read_tensor(file.get(), link_path, catalogue.header, path);
    tensor.block_elements = tensors.number_at(i, "block_elements");
    tensor.block_phase = tensors.number_at(i, "block_phase");
    check_blocks(tensor, catalogue.header, path);
    tensor.first_block = num_blocks;
    num_blocks += static_cast<std::uint64_t>(tensor.blocks().count());
    catalogue.tensors.push_back(std::move(tensor));
    tensor_paths.insert(link_path);
  }
  if (num_blocks != catalogue.header.num_blocks) {
    throw_damaged(path, text("has ", catalogue.header.num_blocks, " digests for ", num_blocks, " blocks"));
  }
  GroupWalk(file.get(), catalogue, tensor_paths).visit("");
  const Table launches(file.get(), launches_table);
  for (std::size_t i = 0; i < launches.num_rows(); ++i) {
    LaunchRecord launch;
    launch.started = launches.text_at(i, "started");
    launch.from_step = launches.number_at(i, "from_step");
    launch.num_ranks = launches.number_at(i, "num_ranks");
    launch.hosts = launches.text_at(i, "hosts");
    launch.versions = launches.text_at(i, "versions");
    catalogue.launches.push_back(std::move(launch));
  }
}

}  // namespace lockstep
