#pragma once

#include <functional>
#include <string>

#include "io/file_parts.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

/// Writes one rank's bytes into an existing checkpoint file and makes them durable, in a few large transfers.
///
/// Ranges go through `access` (past the page cache where the file system takes that), fragments through the page
/// cache: no disk block sees both. Calls neither HDF5 nor MPI, so it may run in a thread of its own.
/// `on_half` is called when half of the bytes are written, `on_written` when all are but none need be durable.
void write_directly(const std::string& path, const OwnedBlocks& blocks, FileAccess access,
                    const std::function<void()>& on_half, const std::function<void()>& on_written);

}  // namespace lockstep
