#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "io/hdf5_handle.hpp"

namespace lockstep {

/// The stored bytes of one HDF5 data set, row by row: row i is sample i, in the type of the file.
/// Rows are read by the calling process alone; nothing here is collective.
class DatasetRows {
 public:
  virtual ~DatasetRows() = default;

  /// Copies the rows `ids` to `out`, one after the other. Every id must lie in the data set.
  /// Throws Error when the file has changed or cannot be read.
  virtual void gather(std::span<const std::int64_t> ids, std::byte* out) = 0;
};

/// What the rows of a data set are, however they are stored.
struct RowLayout {
  std::string path;  ///< of the file
  std::string name;  ///< of the data set
  std::int64_t num_rows = 0;
  std::size_t row_bytes = 0;  ///< of one row as the file stores it
};

/// Rows that lie in the file one after the other from byte `offset` on. They are read beside HDF5, so that a read
/// may run while another thread is in HDF5. Small rows are copied from a mapping of the file (0.2 us a row of 784
/// bytes, where a system call takes 0.9 and H5Dread 8), large ones by pread. Throws Error when the file is too short.
std::unique_ptr<DatasetRows> make_contiguous_rows(RowLayout layout, std::int64_t offset);

/// Rows in any other layout (chunked, compressed, virtual, ...), read by H5Dread in blocks of whole chunks. The
/// newest blocks are kept, `cache_bytes` of them (one at least): shuffled reading is fast while the set fits.
std::unique_ptr<DatasetRows> make_blocked_rows(RowLayout layout, Hdf5Handle dataset, std::size_t cache_bytes);

}  // namespace lockstep
