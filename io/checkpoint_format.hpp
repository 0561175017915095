#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/plan/error.hpp"

// What reader and writer of a checkpoint file share. README.md in this folder is the document of the format.
// Do not change these values: they are in the files. A new meaning needs a new format_version.

namespace lockstep {

inline constexpr std::int64_t format_version = 1;

/// The first bytes of a checkpoint: text, before the HDF5 part begins (HDF5 calls them the user block).
inline constexpr std::uint64_t header_bytes = 4096;

/// Disk blocks: the data begins on one, and no block of it is written by two ranks.
inline constexpr std::uint64_t disk_block_bytes = 4096;

inline constexpr const char* integrity_group = "integrity";    ///< digests and the table of tensors
inline constexpr const char* provenance_group = "provenance";  ///< who wrote the file: no part of the state
inline constexpr const char* tensors_table = "/integrity/tensors";
inline constexpr const char* blocks_table = "/integrity/blocks";
inline constexpr const char* launches_table = "/provenance/launches";

/// A list attribute of more bytes than this is a dataset of its own in its group (HDF5's limit is 64 KiB).
inline constexpr std::size_t max_attribute_bytes = 32768;

/// One row of blocks_table: the digest of a block of a tensor, in the order of tensors_table and of their elements.
struct BlockRow {
  std::uint64_t tensor = 0;  ///< its row in tensors_table
  std::uint64_t first_element = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t digest = 0;  ///< XXH3 of the block's bytes

  friend bool operator==(const BlockRow&, const BlockRow&) = default;
};
static_assert(sizeof(BlockRow) == 32);

/// The header: where the parts of the file are, and that it is complete. Written last, so that a file without
/// one was never finished.
struct CheckpointHeader {
  std::int64_t step = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t data_begin = 0;  ///< the tensors' elements are within [data_begin, data_end)
  std::uint64_t data_end = 0;
  std::uint64_t blocks_begin = 0;  ///< the rows of blocks_table
  std::uint64_t num_blocks = 0;
  std::uint64_t metadata_digest = 0;  ///< of all bytes from header_bytes on that are neither data nor rows
  std::uint64_t state_digest = 0;     ///< of the state: see state_digest() of Catalogue

  std::uint64_t blocks_end() const { return blocks_begin + num_blocks * sizeof(BlockRow); }
};

/// A checkpoint that is not what was written: cut, changed, or never finished. Only this leads to an older one.
class DamagedCheckpoint : public Error {
 public:
  explicit DamagedCheckpoint(const std::string& message) : Error(ErrorKind::do_not_requeue, message) {}
};

/// The header as header_bytes of text.
std::string encode_header(const CheckpointHeader& header);

/// Reads what encode_header() wrote. Throws DamagedCheckpoint, or Error when a later version wrote the file.
CheckpointHeader decode_header(std::string_view bytes, const std::string& path);

/// The name of a checkpoint file, and the step of such a name (none for other names). Numbers may be of any width.
std::string checkpoint_file_name(std::int64_t step);
std::optional<std::int64_t> step_of_file_name(std::string_view name);

/// What an unfinished checkpoint's name ends with.
inline constexpr std::string_view temporary_suffix = ".tmp";

/// A name as a link of an HDF5 group, where '/', "." and ".." mean something else: those characters, '%', and
/// the empty name become '%' and two hexadecimal digits. unescape_name() is exact; throws on what escape never makes.
std::string escape_name(std::string_view name);
std::string unescape_name(std::string_view link);

/// A section ("optimizer/exp_avg") as an HDF5 path ("/optimizer/exp_avg"), each component escaped; and back.
std::string section_path(std::string_view section);
std::string section_of_path(std::string_view path);

}  // namespace lockstep
