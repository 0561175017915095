#include "io/hdf5_attributes.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

#include "io/checkpoint_format.hpp"

namespace lockstep {

namespace {

Hdf5Handle text_type() {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), "cannot make an HDF5 text type");
  check_hdf5(H5Tset_size(type.get(), H5T_VARIABLE), "cannot make an HDF5 text type");
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), "cannot make an HDF5 text type");
  return type;
}

template <class Element>
Hdf5Handle type_for() {
  if constexpr (std::is_same_v<Element, std::int64_t>) {
    return Hdf5Handle(H5Tcopy(H5T_STD_I64LE), "cannot make an HDF5 type");
  } else if constexpr (std::is_same_v<Element, double>) {
    return Hdf5Handle(H5Tcopy(H5T_IEEE_F64LE), "cannot make an HDF5 type");
  } else {
    return text_type();
  }
}

const char* as_c_text(const std::string& value, const std::string& name) {
  if (value.find('\0') != std::string::npos) {
    throw Error(ErrorKind::usage,
                text("the attribute '", name, "' holds a zero byte (HDF5 texts end there): remove it"));
  }
  return value.c_str();
}

// The elements as HDF5 takes them: numbers as they are, texts as pointers that live as long as `values`.
template <class Element>
auto elements_of(const std::vector<Element>& values, const std::string& name) {
  if constexpr (std::is_same_v<Element, std::string>) {
    std::vector<const char*> pointers;
    for (const std::string& value : values) pointers.push_back(as_c_text(value, name));
    return pointers;
  } else {
    (void)name;
    return values;
  }
}

template <class Element>
void create_attribute(hid_t object, const std::string& name, const std::vector<Element>& values, hid_t space) {
  const std::string what = text("cannot write the attribute '", name, "'");
  const Hdf5Handle type = type_for<Element>();
  const Hdf5Handle attribute(H5Acreate2(object, name.c_str(), type.get(), space, H5P_DEFAULT, H5P_DEFAULT), what);
  const auto elements = elements_of(values, name);
  if (!elements.empty()) check_hdf5(H5Awrite(attribute.get(), type.get(), elements.data()), what);
}

template <class Element>
void create_list(hid_t group, const std::string& name, const std::vector<Element>& values) {
  const std::string what = text("cannot write the list '", name, "'");
  const Hdf5Handle type = type_for<Element>();
  const hsize_t extent = values.size();
  const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), what);
  const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), what);
  check_hdf5(H5Pset_obj_track_times(creation.get(), false), what);
  const Hdf5Handle dataset(
      H5Dcreate2(group, escape_name(name).c_str(), type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      what);
  const auto elements = elements_of(values, name);
  check_hdf5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data()), what);
}

template <class Element>
constexpr std::size_t stored_bytes = std::is_same_v<Element, std::string> ? 16 : sizeof(Element);

template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};

// The extent of a scalar or one-dimensional space.
struct Extent {
  bool is_scalar = false;
  std::size_t count = 1;
};

Extent extent_of(hid_t space, const std::string& what) {
  const H5S_class_t kind = H5Sget_simple_extent_type(space);
  if (kind == H5S_SCALAR) return {true, 1};
  hsize_t extent = 0;
  if (kind != H5S_SIMPLE || H5Sget_simple_extent_ndims(space) != 1) {
    throw Error(ErrorKind::failed, text(what, " (it is neither a value nor a list): take another checkpoint"));
  }
  check_hdf5(H5Sget_simple_extent_dims(space, &extent, nullptr), what);
  return {false, static_cast<std::size_t>(extent)};
}

template <class Element>
AttributeValue as_value(std::vector<Element> values, bool is_scalar) {
  if (is_scalar) return values.front();
  return values;
}

// Reads through `read(type, buffer)`, whatever holds the values.
template <class Read>
AttributeValue read_values(hid_t stored, hid_t space, const std::string& what, const Read& read) {
  const Extent extent = extent_of(space, what);
  const H5T_class_t kind = H5Tget_class(stored);
  if (kind == H5T_STRING && H5Tis_variable_str(stored) > 0) {
    const Hdf5Handle type = text_type();
    std::vector<char*> pointers(extent.count, nullptr);
    if (extent.count > 0) read(type.get(), pointers.data());
    std::vector<std::string> values;
    for (const char* pointer : pointers) values.emplace_back(pointer == nullptr ? "" : pointer);
    if (extent.count > 0) H5Dvlen_reclaim(type.get(), space, H5P_DEFAULT, pointers.data());
    return as_value(std::move(values), extent.is_scalar);
  }
  if (kind == H5T_INTEGER && H5Tequal(stored, H5T_STD_I64LE) > 0) {
    std::vector<std::int64_t> values(extent.count);
    if (extent.count > 0) read(H5T_STD_I64LE, values.data());
    return as_value(std::move(values), extent.is_scalar);
  }
  if (kind == H5T_FLOAT && H5Tequal(stored, H5T_IEEE_F64LE) > 0) {
    std::vector<double> values(extent.count);
    if (extent.count > 0) read(H5T_IEEE_F64LE, values.data());
    return as_value(std::move(values), extent.is_scalar);
  }
  throw Error(ErrorKind::failed, text(what, " (its type is none that a checkpoint uses): take another checkpoint"));
}

herr_t collect_name(hid_t /*object*/, const char* name, const H5A_info_t* /*info*/, void* out) {
  static_cast<std::vector<std::string>*>(out)->emplace_back(name);
  return 0;
}

}  // namespace

void write_attribute(hid_t object, const std::string& name, const AttributeValue& value) {
  const std::string what = text("cannot write the attribute '", name, "'");
  std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (IsList<Held>::value) {
          const hsize_t extent = held.size();
          const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), what);
          create_attribute(object, name, held, space.get());
        } else {
          const Hdf5Handle space(H5Screate(H5S_SCALAR), what);
          create_attribute(object, name, std::vector<Held>{held}, space.get());
        }
      },
      value);
}

void write_attribute_group(hid_t group, const AttributeGroup& values) {
  for (const auto& entry : values) {
    const std::string& name = entry.first;
    std::visit(
        [&](const auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (IsList<Held>::value) {
            constexpr std::size_t element_bytes = stored_bytes<typename Held::value_type>;
            if (held.size() * element_bytes > max_attribute_bytes) {
              create_list(group, name, held);
              return;
            }
          }
          write_attribute(group, name, held);
        },
        entry.second);
  }
}

AttributeGroup read_attributes(hid_t object) {
  std::vector<std::string> names;
  hsize_t position = 0;
  check_hdf5(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &position, collect_name, &names),
             "cannot list attributes");
  AttributeGroup values;
  for (const std::string& name : names) {
    const std::string what = text("cannot read the attribute '", name, "'");
    const Hdf5Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), what);
    const Hdf5Handle type(H5Aget_type(attribute.get()), what);
    const Hdf5Handle space(H5Aget_space(attribute.get()), what);
    values[name] = read_values(type.get(), space.get(), what, [&](hid_t memory, void* buffer) {
      check_hdf5(H5Aread(attribute.get(), memory, buffer), what);
    });
  }
  return values;
}

AttributeValue read_list(hid_t dataset, const std::string& name) {
  const std::string what = text("cannot read the list '", name, "'");
  const Hdf5Handle type(H5Dget_type(dataset), what);
  const Hdf5Handle space(H5Dget_space(dataset), what);
  return read_values(type.get(), space.get(), what, [&](hid_t memory, void* buffer) {
    check_hdf5(H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer), what);
  });
}

}  // namespace lockstep
