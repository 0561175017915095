#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// The LibTorch type of `type`.
at::ScalarType scalar_type_of(ElementType type);

/// The element type of a tensor called `name`. Throws Error(do_not_requeue) for types that a checkpoint cannot hold
/// (quantized, float8, ...).
ElementType element_type_of(at::ScalarType type, const std::string& name);

/// A view of plain memory of `device`; it does not own it.
at::Tensor view_of(std::byte* data, at::IntArrayRef shape, at::ScalarType type, c10::Device device = at::kCPU);

}  // namespace lockstep
