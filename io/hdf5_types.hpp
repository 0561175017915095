#pragma once

#include <optional>

#include "io/hdf5_handle.hpp"
#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// The HDF5 type that stores `type` in a checkpoint, little-endian, bit for bit: integers and IEEE floats as they
/// are, float16 and bfloat16 as floats of 16 bits with their own fields, bool as the enumeration FALSE, TRUE over
/// 8 bits, complex as a compound of r and i. h5py reads all of them as numpy types (bfloat16 as float32).
Hdf5Handle hdf5_type_of(ElementType type);

/// The element type that an HDF5 type of a checkpoint stands for; none for types that hdf5_type_of() never makes.
std::optional<ElementType> element_type_of(hid_t type);

}  // namespace lockstep
