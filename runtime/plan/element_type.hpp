#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

/// The element types that a tensor of the training state may have.
enum class ElementType {
  boolean,
  uint8,
  int8,
  int16,
  int32,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128
};

/// Bytes of one element.
constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::boolean:
    case ElementType::uint8:
    case ElementType::int8:
      return 1;
    case ElementType::int16:
    case ElementType::float16:
    case ElementType::bfloat16:
      return 2;
    case ElementType::int32:
    case ElementType::float32:
      return 4;
    case ElementType::int64:
    case ElementType::float64:
    case ElementType::complex64:
      return 8;
    case ElementType::complex128:
      return 16;
  }
  return 0;
}

/// The type's name in messages and files: "float32", "bfloat16", "bool", ...
constexpr std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::boolean:
      return "bool";
    case ElementType::uint8:
      return "uint8";
    case ElementType::int8:
      return "int8";
    case ElementType::int16:
      return "int16";
    case ElementType::int32:
      return "int32";
    case ElementType::int64:
      return "int64";
    case ElementType::float16:
      return "float16";
    case ElementType::bfloat16:
      return "bfloat16";
    case ElementType::float32:
      return "float32";
    case ElementType::float64:
      return "float64";
    case ElementType::complex64:
      return "complex64";
    case ElementType::complex128:
      return "complex128";
  }
  return "unknown";
}

}  // namespace lockstep
