#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "io/hdf5_handle.hpp"
#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// How the numbers of a foreign HDF5 data set come into memory.
///
/// Integers keep their width where a tensor type has it; unsigned 16 and 32 bits take the next wider signed type, and
/// unsigned 64 bits int64 (a value beyond it is an error, not another number). float16 and bfloat16 keep their bits.
/// An enumeration of FALSE and TRUE is boolean, any other is its integers.
struct DatasetType {
  ElementType element = ElementType::float32;
  std::size_t stored_bytes = 0;  ///< of one element in the file
  Hdf5Handle stored;             ///< the type in the file
  Hdf5Handle native;             ///< the type in memory
  bool is_native = false;        ///< both are the same bytes
};

/// The type of numbers that `stored` holds; none for text, compounds and whatever else is not a number.
std::optional<DatasetType> dataset_type(Hdf5Handle stored);

/// Turns `count` stored elements into native ones within `buffer`, which has room for the wider of both.
/// False when a value has no place in the native type.
bool convert_in_place(const DatasetType& type, std::size_t count, std::byte* buffer);

/// A type's name for people: "uint8", "big-endian float32", "text", "compound".
std::string describe_type(const Hdf5Handle& stored);

}  // namespace lockstep
