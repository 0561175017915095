#include "io/dataset_reader.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "runtime/plan/error.hpp"
#include "runtime/plan/shape_text.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kLargestListing = 20;

std::vector<hsize_t> extents_of(const Hdf5Handle& dataset) {
  const Hdf5Handle space(H5Dget_space(dataset.get()), "cannot read the shape of a data set");
  std::vector<hsize_t> extents(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space.get()))));
  if (!extents.empty()) H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  return extents;
}

Hdf5Handle type_of(const Hdf5Handle& dataset) {
  return Hdf5Handle(H5Dget_type(dataset.get()), "cannot read the element type of a data set");
}

/// The data set of this name; empty when there is none.
Hdf5Handle find_dataset(const Hdf5Handle& file, const std::string& name) {
  const hid_t dataset = H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT);
  return dataset < 0 ? Hdf5Handle() : Hdf5Handle(dataset, name);
}

herr_t collect_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

/// All data sets of a file, for a message.
std::string contents_of(const Hdf5Handle& file) {
  std::vector<std::string> names;
  H5Lvisit(file.get(), H5_INDEX_NAME, H5_ITER_INC, collect_name, &names);
  std::string listing;
  std::size_t num_found = 0;
  for (const std::string& name : names) {
    const Hdf5Handle dataset = find_dataset(file, name);
    if (dataset.get() < 0 || ++num_found > kLargestListing) continue;
    listing += text(num_found == 1 ? "it holds " : ", ", "\"", name, "\" ", describe_type(type_of(dataset)), " ",
                    shape_text(extents_of(dataset)));
  }
  if (num_found == 0) return "it holds no data set at all";
  if (num_found > kLargestListing) listing += text(" and ", num_found - kLargestListing, " more");
  return listing;
}

Hdf5Handle open_data_file(const std::string& path) {
  silence_hdf5();
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0) {
    if (S_ISDIR(facts.st_mode)) {
      throw Error(ErrorKind::usage, text("the data file \"", path, "\" is a folder: name an HDF5 file in it"));
    }
    if (H5Fis_hdf5(path.c_str()) == 0) {
      throw Error(ErrorKind::usage,
                  text("the data file \"", path, "\" is not an HDF5 file (", facts.st_size,
                       " bytes without its signature): name one, or convert the data to HDF5 with one data set for "
                       "the inputs and one for the targets"));
    }
  }
  try {
    return open_hdf5_file(path);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("truncated file") == std::string_view::npos) throw;
    throw Error(ErrorKind::do_not_requeue, text("the data file \"", path, "\" is cut short (it has ", facts.st_size,
                                                " bytes, fewer than its header says): copy or make the file again"));
  }
}

}  // namespace

Hdf5Dataset::Hdf5Dataset(const std::string& path, const std::vector<std::string>& names, std::size_t cache_bytes)
    : path_(path) {
  const Hdf5Handle file = open_data_file(path);
  for (const std::string& name : names) add_field(file, name, cache_bytes / names.size());
}

void Hdf5Dataset::add_field(const Hdf5Handle& file, const std::string& name, std::size_t cache_bytes) {
  const auto refuse = [&](const auto&... problem) {
    throw Error(ErrorKind::usage, text("the data file \"", path_, "\" ", problem...));
  };
  Hdf5Handle dataset = find_dataset(file, name);
  if (dataset.get() < 0) refuse("has no data set \"", name, "\" (", contents_of(file), "): name one that it holds");

  Hdf5Handle stored = type_of(dataset);
  const std::string type_name = describe_type(stored);
  std::optional<DatasetType> type = dataset_type(std::move(stored));
  if (!type)
    refuse("holds ", type_name, " in \"", name, "\" (training needs numbers; ", contents_of(file),
           "): name a data set of numbers, or store this one as numbers");

  const std::vector<hsize_t> extents = extents_of(dataset);
  if (extents.empty())
    refuse("holds a single value in \"", name, "\" (the first dimension must count the samples; ", contents_of(file),
           "): name another data set");
  const auto num_rows = static_cast<std::int64_t>(extents.front());
  FieldInfo field{name, type->element, {extents.begin() + 1, extents.end()}};
  const std::size_t row_elements = field.sample_bytes() / size_of(field.type);
  if (num_rows == 0 || row_elements == 0) {
    refuse("holds nothing in \"", name, "\" (its shape is ", shape_text(extents), "): make it again, with samples");
  }
  if (!fields_.empty() && num_rows != num_samples_) {
    refuse("holds ", num_samples_, " samples in \"", fields_.front().name, "\" and ", num_rows, " in \"", name,
           "\" (each sample needs both): make the first dimensions equal, or name other data sets");
  }

  const RowLayout layout{path_, name, num_rows, row_elements * type->stored_bytes};
  const Hdf5Handle creation(H5Dget_create_plist(dataset.get()), "cannot read the layout of a data set");
  const haddr_t offset = H5Dget_offset(dataset.get());
  const bool contiguous = H5Pget_layout(creation.get()) == H5D_CONTIGUOUS &&
                          H5Pget_external_count(creation.get()) == 0 && offset != HADDR_UNDEF;
  Column column;
  column.rows = contiguous ? make_contiguous_rows(layout, static_cast<std::int64_t>(offset))
                           : make_blocked_rows(layout, std::move(dataset), cache_bytes);
  column.enters_hdf5 = !contiguous || !type->is_native;
  column.type = std::move(*type);
  column.row_elements = row_elements;
  columns_.push_back(std::move(column));
  fields_.push_back(std::move(field));
  num_samples_ = num_rows;
}

void Hdf5Dataset::read(std::size_t field, std::span<const std::int64_t> ids, std::byte* out) {
  const Column& column = columns_.at(field);
  const auto outside = [&](std::int64_t id) { return id < 0 || id >= num_samples_; };
  if (std::any_of(ids.begin(), ids.end(), outside)) {
    throw std::out_of_range(text("a sample id is outside 0..", num_samples_ - 1));
  }
  const std::size_t num_elements = ids.size() * column.row_elements;
  const std::size_t native_bytes = num_elements * size_of(column.type.element);
  if (column.type.is_native) {
    column.rows->gather(ids, out);
  } else {
    scratch_.resize(std::max(native_bytes, num_elements * column.type.stored_bytes));
    column.rows->gather(ids, scratch_.data());
    if (!convert_in_place(column.type, num_elements, scratch_.data())) {
      throw Error(ErrorKind::do_not_requeue,
                  text("a value of \"", fields_[field].name, "\" in the data file \"", path_, "\" does not fit ",
                       name_of(column.type.element), ": store the data set as another type"));
    }
    std::memcpy(out, scratch_.data(), native_bytes);
  }
  if (column.type.element == ElementType::boolean) {  // any other byte than 0 and 1 is undefined behaviour later
    std::transform(out, out + native_bytes, out, [](std::byte value) { return std::byte{value != std::byte{0}}; });
  }
}

bool Hdf5Dataset::reads_beside_hdf5() const {
  return std::none_of(columns_.begin(), columns_.end(), [](const Column& column) { return column.enters_hdf5; });
}

}  // namespace lockstep
