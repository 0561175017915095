#pragma once

#include <string>

#include "io/checkpoint_catalogue.hpp"

namespace lockstep {

/// Reads what HDF5 knows of a checkpoint into `catalogue`: attributes, tensors with their offsets, aliases, launches.
/// The caller has checked the file's metadata digest: HDF5 itself does not stand bytes that nobody wrote.
/// Throws Error for what then still fails (a lock), and DamagedCheckpoint for what no writer makes.
void read_hdf5_catalogue(const std::string& path, Catalogue& catalogue);

}  // namespace lockstep
