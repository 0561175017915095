#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace lockstep {

/// How a file is opened. There is no way to truncate one.
enum class FileAccess {
  read,         ///< an existing file
  write,        ///< an existing file, through the page cache
  write_direct  ///< an existing file, past the page cache (O_DIRECT)
};

/// An open file, closed when it goes. Move-only; a failed call throws Error with the file's name and errno.
/// A single transfer moves at most 1 GiB: larger ones are cut, since system calls and MPI-IO stop short of 2 GiB.
class PosixFile {
 public:
  PosixFile(const std::string& path, FileAccess access);

  PosixFile(PosixFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;

  /// Fills `bytes` from `offset` on, or less at the end of the file; returns how many were read.
  std::size_t read_at(std::span<std::byte> bytes, std::uint64_t offset) const;

  /// Writes all of `bytes`.
  void write_at(std::span<const std::byte> bytes, std::uint64_t offset);

  /// Returns when everything written is on the disk.
  void sync();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// True when the folder's file system takes O_DIRECT. Tries it with a file of its own.
bool takes_direct_writes(const std::string& folder);

/// Makes a rename, a new or a removed name in `folder` durable.
void sync_folder(const std::string& folder);

/// Gives `from` the name `to` at once, whatever `to` was, and makes that durable.
void rename_durably(const std::string& from, const std::string& to);

/// Removes a file; an absent one is no error.
void remove_file(const std::string& path);

/// Creates the folder and those above it.
void make_folder(const std::string& folder);

/// Bytes that may still be written in `folder`.
std::uint64_t free_bytes(const std::string& folder);

/// The file system's type by its common name ("ext4", "tmpfs", "nfs", ...), or its number in hexadecimal.
std::string file_system_type(const std::string& folder);

/// Throws Error "cannot `what` 'path' (errno N: why): what to do", for the failed system call just made.
[[noreturn]] void throw_system_failure(const std::string& what, const std::string& path, int number);

}  // namespace lockstep
