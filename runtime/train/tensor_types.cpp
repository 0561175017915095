#include "runtime/train/tensor_types.hpp"

#include <ATen/ops/from_blob.h>

#include <array>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr std::array<std::pair<ElementType, at::ScalarType>, 12> type_pairs = {{
    {ElementType::boolean, at::kBool},
    {ElementType::uint8, at::kByte},
    {ElementType::int8, at::kChar},
    {ElementType::int16, at::kShort},
    {ElementType::int32, at::kInt},
    {ElementType::int64, at::kLong},
    {ElementType::float16, at::kHalf},
    {ElementType::bfloat16, at::kBFloat16},
    {ElementType::float32, at::kFloat},
    {ElementType::float64, at::kDouble},
    {ElementType::complex64, at::kComplexFloat},
    {ElementType::complex128, at::kComplexDouble},
}};

}  // namespace

at::ScalarType scalar_type_of(ElementType type) {
  for (const auto& [element, scalar] : type_pairs)
    if (element == type) return scalar;
  throw std::logic_error("an element type without a LibTorch type");
}

ElementType element_type_of(at::ScalarType type, const std::string& name) {
  for (const auto& [element, scalar] : type_pairs)
    if (scalar == type) return element;
  throw Error(ErrorKind::do_not_requeue,
              text("tensor '", name, "' has the type ", c10::toString(type),
                   ", which a checkpoint cannot hold: use a float, complex, integer or bool "
                   "type for it"));
}

at::Tensor view_of(std::byte* data, at::IntArrayRef shape, at::ScalarType type, c10::Device device) {
  return at::from_blob(data, shape, at::TensorOptions().dtype(type).device(device));
}

}  // namespace lockstep
