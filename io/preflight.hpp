#pragma once

#include <cstdint>
#include <string>

#include "io/checkpoint_writer.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// The bytes of all tensors of a snapshot: about what its checkpoint takes.
std::uint64_t checkpoint_bytes(const Snapshot& snapshot);

/// **Collective.** Tries out, in well under a second, what the first save will need hours later: `folder` can be
/// written, has room for two checkpoints of `checkpoint_bytes`, and a small checkpoint to which the last rank brings
/// nothing comes back as it was written. Leaves nothing behind. Returns a line for people: writer, file system,
/// free space, HDF5 and MPI-IO. Throws Error on all ranks for what is wrong.
std::string run_preflight(Communicator& communicator, const std::string& folder, WriterKind wanted,
                          std::uint64_t checkpoint_bytes);

}  // namespace lockstep
