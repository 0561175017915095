#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "io/file_parts.hpp"
#include "io/posix_file.hpp"
#include "io/staging_buffer.hpp"

namespace lockstep {

/// The memory in which ranges are gathered to large transfers: one for each transfer under way at a time.
/// Kept from save to save.
struct TransferBuffers {
  static constexpr std::uint64_t num_bytes = std::uint64_t{8} << 20;
  static constexpr std::size_t count = 2;  ///< while one is filled or on its way, the disk has the other

  std::array<StagingBuffer, count> each = {StagingBuffer(num_bytes), StagingBuffer(num_bytes)};
};

/// Writes one rank's ranges into an existing checkpoint file and makes them durable, in a few large transfers.
///
/// They go through `access`, past the page cache where the file system takes that; those that lie on disk blocks in
/// memory too are written from where they are. Calls neither HDF5 nor MPI, so it may run in a thread of its own.
/// `on_half` is called when about half of the bytes are written, `on_written` when all are but none need be durable.
void write_directly(const std::string& path, const std::vector<FileRange>& ranges, FileAccess access,
                    TransferBuffers& buffers, const std::function<void()>& on_half,
                    const std::function<void()>& on_written);

}  // namespace lockstep
