#include "io/hdf5_types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

namespace {

constexpr std::array all_types = {ElementType::boolean, ElementType::uint8,     ElementType::int8,
                                  ElementType::int16,   ElementType::int32,     ElementType::int64,
                                  ElementType::float16, ElementType::bfloat16,  ElementType::float32,
                                  ElementType::float64, ElementType::complex64, ElementType::complex128};

const char* const what = "cannot make an HDF5 element type";

Hdf5Handle copy_of(hid_t type) { return Hdf5Handle(H5Tcopy(type), what); }

Hdf5Handle float_of_16_bits(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Hdf5Handle type = copy_of(H5T_IEEE_F32LE);
  check_hdf5(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits), what);
  check_hdf5(H5Tset_size(type.get(), 2), what);
  check_hdf5(H5Tset_ebias(type.get(), bias), what);
  return type;
}

Hdf5Handle boolean_type() {
  Hdf5Handle type(H5Tenum_create(H5T_STD_I8LE), what);
  const std::int8_t no = 0;
  const std::int8_t yes = 1;
  check_hdf5(H5Tenum_insert(type.get(), "FALSE", &no), what);
  check_hdf5(H5Tenum_insert(type.get(), "TRUE", &yes), what);
  return type;
}

Hdf5Handle complex_of(hid_t part) {
  const std::size_t part_bytes = H5Tget_size(part);
  Hdf5Handle type(H5Tcreate(H5T_COMPOUND, 2 * part_bytes), what);
  check_hdf5(H5Tinsert(type.get(), "r", 0, part), what);
  check_hdf5(H5Tinsert(type.get(), "i", part_bytes, part), what);
  return type;
}

}  // namespace

Hdf5Handle hdf5_type_of(ElementType type) {
  switch (type) {
    case ElementType::boolean:
      return boolean_type();
    case ElementType::uint8:
      return copy_of(H5T_STD_U8LE);
    case ElementType::int8:
      return copy_of(H5T_STD_I8LE);
    case ElementType::int16:
      return copy_of(H5T_STD_I16LE);
    case ElementType::int32:
      return copy_of(H5T_STD_I32LE);
    case ElementType::int64:
      return copy_of(H5T_STD_I64LE);
    case ElementType::float16:
      return float_of_16_bits(5, 10, 15);
    case ElementType::bfloat16:
      return float_of_16_bits(8, 7, 127);
    case ElementType::float32:
      return copy_of(H5T_IEEE_F32LE);
    case ElementType::float64:
      return copy_of(H5T_IEEE_F64LE);
    case ElementType::complex64:
      return complex_of(H5T_IEEE_F32LE);
    case ElementType::complex128:
      return complex_of(H5T_IEEE_F64LE);
  }
  return Hdf5Handle(H5I_INVALID_HID, "unknown element type");
}

std::optional<ElementType> element_type_of(hid_t type) {
  for (const ElementType candidate : all_types) {
    if (check_hdf5(H5Tequal(type, hdf5_type_of(candidate).get()), "cannot compare HDF5 types") > 0) return candidate;
  }
  return {};
}

}  // namespace lockstep
