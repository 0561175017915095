#include "io/dataset_type.hpp"

#include <array>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr const char* kWhat = "cannot examine the element type of a data set";

/// The places of sign, exponent and mantissa of a floating type of 16 bits.
bool has_fields(hid_t type, std::size_t sign, std::size_t exponent, std::size_t exponent_bits, std::size_t bias) {
  std::size_t sign_at = 0, exponent_at = 0, exponent_size = 0, mantissa_at = 0, mantissa_size = 0;
  return H5Tget_size(type) == 2 && H5Tget_precision(type) == 16 &&
         H5Tget_fields(type, &sign_at, &exponent_at, &exponent_size, &mantissa_at, &mantissa_size) >= 0 &&
         sign_at == sign && exponent_at == exponent && exponent_size == exponent_bits && mantissa_at == 0 &&
         mantissa_size == exponent && H5Tget_ebias(type) == bias;
}

bool is_float16(hid_t type) { return has_fields(type, 15, 10, 5, 15); }
bool is_bfloat16(hid_t type) { return has_fields(type, 15, 7, 8, 127); }

/// The same 16 bits in this machine's order: HDF5's own arithmetic on them is wrong for subnormal numbers.
Hdf5Handle in_native_order(hid_t type) {
  Hdf5Handle copy(H5Tcopy(type), kWhat);
  H5Tset_order(copy.get(), H5Tget_order(H5T_NATIVE_INT));
  return copy;
}

bool has_member(hid_t enumeration, const char* name, int wanted) {
  const int index = H5Tget_member_index(enumeration, name);
  signed char value = -1;
  return index >= 0 && H5Tget_member_value(enumeration, static_cast<unsigned>(index), &value) >= 0 && value == wanted;
}

bool is_boolean(hid_t type) {
  return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 && has_member(type, "FALSE", 0) &&
         has_member(type, "TRUE", 1);
}

struct Native {
  ElementType element;
  hid_t id;
};

Native native_integer(hid_t type) {
  const std::size_t bits = H5Tget_precision(type);
  const bool is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
  if (!is_signed && bits <= 8) return {ElementType::uint8, H5T_NATIVE_UINT8};
  const std::size_t needed = is_signed ? bits : bits + 1;
  if (needed <= 8) return {ElementType::int8, H5T_NATIVE_INT8};
  if (needed <= 16) return {ElementType::int16, H5T_NATIVE_INT16};
  if (needed <= 32) return {ElementType::int32, H5T_NATIVE_INT32};
  return {ElementType::int64, H5T_NATIVE_INT64};
}

std::string class_name(H5T_class_t type_class) {
  switch (type_class) {
    case H5T_STRING:
      return "text";
    case H5T_COMPOUND:
      return "compound";
    case H5T_ARRAY:
      return "array elements";
    case H5T_VLEN:
      return "sequences of varying length";
    case H5T_REFERENCE:
      return "references";
    case H5T_OPAQUE:
      return "opaque bytes";
    case H5T_BITFIELD:
      return "bit fields";
    case H5T_TIME:
      return "times";
    default:
      return "an unknown type";
  }
}

H5T_conv_ret_t refuse_out_of_range(H5T_conv_except_t reason, hid_t, hid_t, void*, void*, void*) {
  const bool lost = reason == H5T_CONV_EXCEPT_RANGE_HI || reason == H5T_CONV_EXCEPT_RANGE_LOW;
  return lost ? H5T_CONV_ABORT : H5T_CONV_UNHANDLED;
}

}  // namespace

std::optional<DatasetType> dataset_type(Hdf5Handle stored) {
  DatasetType type;
  type.stored = std::move(stored);
  type.stored_bytes = H5Tget_size(type.stored.get());
  const auto take = [&](Native native) {
    type.element = native.element;
    type.native = Hdf5Handle(H5Tcopy(native.id), kWhat);
  };
  switch (H5Tget_class(type.stored.get())) {
    case H5T_INTEGER:
      take(native_integer(type.stored.get()));
      break;
    case H5T_ENUM: {
      const bool boolean = is_boolean(type.stored.get());
      const Hdf5Handle base(H5Tget_super(type.stored.get()), kWhat);
      take(native_integer(base.get()));
      type.stored = Hdf5Handle(H5Tcopy(base.get()), kWhat);
      if (boolean) type.element = ElementType::boolean;
      break;
    }
    case H5T_FLOAT:
      if (is_float16(type.stored.get()) || is_bfloat16(type.stored.get())) {
        type.element = is_float16(type.stored.get()) ? ElementType::float16 : ElementType::bfloat16;
        type.native = in_native_order(type.stored.get());
      } else if (type.stored_bytes <= 4) {
        take({ElementType::float32, H5T_NATIVE_FLOAT});
      } else {
        take({ElementType::float64, H5T_NATIVE_DOUBLE});
      }
      break;
    default:
      return std::nullopt;
  }
  type.is_native = H5Tequal(type.stored.get(), type.native.get()) > 0;
  return type;
}

bool convert_in_place(const DatasetType& type, std::size_t count, std::byte* buffer) {
  const Hdf5Handle transfer(H5Pcreate(H5P_DATASET_XFER), kWhat);
  return H5Pset_type_conv_cb(transfer.get(), refuse_out_of_range, nullptr) >= 0 &&
         H5Tconvert(type.stored.get(), type.native.get(), count, buffer, nullptr, transfer.get()) >= 0;
}

std::string describe_type(const Hdf5Handle& stored) {
  const hid_t id = stored.get();
  const H5T_class_t type_class = H5Tget_class(id);
  if (type_class == H5T_ENUM) return is_boolean(id) ? "bool" : "enumeration";
  if (type_class != H5T_INTEGER && type_class != H5T_FLOAT) return class_name(type_class);
  std::string name = is_bfloat16(id) ? "bfloat" : type_class == H5T_FLOAT ? "float" : "int";
  if (type_class == H5T_INTEGER && H5Tget_sign(id) == H5T_SGN_NONE) name = "uint";
  const bool foreign = H5Tget_size(id) > 1 && H5Tget_order(id) == H5T_ORDER_BE;
  return text(foreign ? "big-endian " : "", name, H5Tget_precision(id));
}

}  // namespace lockstep
