#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "io/checkpoint_catalogue.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

/// A finished checkpoint file, opened for reading by one process. Needs no MPI and no more memory than the
/// catalogue: elements stay on the disk until they are asked for. HDF5 is used only within the constructor.
///
/// Once constructed, everything but the elements is known to be what was written; verify() says so of the elements.
class CheckpointFile {
 public:
  /// Opens and checks header, size, metadata, attributes, names, shapes and rows against their digests.
  /// Throws DamagedCheckpoint when the file is not what was written, and Error for everything else that keeps it
  /// from being read: permissions, a lock, a later format.
  explicit CheckpointFile(const std::string& path);

  /// Opens a file whose catalogue another rank has read and checked.
  CheckpointFile(const std::string& path, Catalogue catalogue);

  const std::string& path() const { return file_.path(); }

  /// Step, attributes, tensors, aliases, launches, digests.
  const Catalogue& catalogue() const { return catalogue_; }

  /// The index in catalogue().tensors of a tensor by name, or of what an alias stands for.
  std::optional<std::size_t> find(std::string_view section, std::string_view name) const;

  /// Reads the elements [begin, end) of a tensor's row-major order. Throws DamagedCheckpoint past the file's end.
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, std::byte* out) const;

  /// Checks the elements of the blocks [begin_block, end_block) against their digests. Throws DamagedCheckpoint
  /// that names the first tensor and elements that differ. `on_progress`, if given, hears how many bytes are done.
  void verify(std::uint64_t begin_block, std::uint64_t end_block,
              const std::function<void(std::uint64_t)>& on_progress = {}) const;

  /// Checks all elements.
  void verify() const { verify(0, catalogue_.blocks.size()); }

 private:
  std::uint64_t offset_of(const BlockRow& row) const;
  void read_exactly(std::span<std::byte> bytes, std::uint64_t offset) const;
  void compare(const BlockRow& row, std::uint64_t found) const;

  void index_names();

  PosixFile file_;
  Catalogue catalogue_;
  std::unordered_map<std::string, std::size_t> index_;  ///< section, zero byte, name or alias
};

}  // namespace lockstep
