#include "io/posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "runtime/plan/error.hpp"

namespace lockstep {

namespace {

constexpr std::size_t max_transfer_bytes = std::size_t{1} << 30;

int open_flags(FileAccess access) {
  switch (access) {
    case FileAccess::read:
      return O_RDONLY;
    case FileAccess::write:
      return O_RDWR;
    case FileAccess::write_direct:
      return O_RDWR | O_DIRECT;
  }
  return O_RDONLY;
}

const char* next_act(int number) {
  switch (number) {
    case ENOENT:
      return "check the name and the folder";
    case EACCES:
    case EPERM:
      return "check the permissions of file and folder";
    case EROFS:
      return "choose a folder on a file system that is mounted for writing";
    case ENOSPC:
    case EDQUOT:
      return "free space, raise the quota, or keep fewer checkpoints";
    default:
      return "check the file system and start again";
  }
}

}  // namespace

void throw_system_failure(const std::string& what, const std::string& path, int number) {
  const bool is_usage = number == ENOENT || number == EACCES || number == EPERM || number == EROFS;
  throw Error(
      is_usage ? ErrorKind::usage : ErrorKind::failed,
      text("cannot ", what, " '", path, "' (errno ", number, ": ", std::strerror(number), "): ", next_act(number)));
}

PosixFile::PosixFile(const std::string& path, FileAccess access)
    : path_(path), descriptor_(::open(path.c_str(), open_flags(access) | O_CLOEXEC)) {
  if (descriptor_ < 0) throw_system_failure("open", path_, errno);
}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t PosixFile::size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) throw_system_failure("look at", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

std::size_t PosixFile::read_at(std::span<std::byte> bytes, std::uint64_t offset) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t count = std::min(bytes.size() - done, max_transfer_bytes);
    const ssize_t moved = ::pread(descriptor_, bytes.data() + done, count, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw_system_failure("read from", path_, errno);
    if (moved == 0) break;
    done += static_cast<std::size_t>(moved);
  }
  return done;
}

void PosixFile::write_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t count = std::min(bytes.size() - done, max_transfer_bytes);
    const ssize_t moved = ::pwrite(descriptor_, bytes.data() + done, count, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) throw_system_failure("write to", path_, moved < 0 ? errno : EIO);
    done += static_cast<std::size_t>(moved);
  }
}

void PosixFile::sync() {
  if (::fdatasync(descriptor_) != 0) throw_system_failure("make durable", path_, errno);
}

bool takes_direct_writes(const std::string& folder) {
  constexpr std::size_t block_bytes = 4096;
  std::string path = folder + "/direct-XXXXXX.h5.tmp";
  const int descriptor = ::mkostemps(path.data(), 7, O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) return false;
  const std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(block_bytes, block_bytes), std::free);
  std::memset(block.get(), 0, block_bytes);
  const bool taken = ::pwrite(descriptor, block.get(), block_bytes, 0) == static_cast<ssize_t>(block_bytes);
  ::close(descriptor);
  ::unlink(path.c_str());
  return taken;
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_system_failure("open folder", folder, errno);
  const int number = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (number != 0 && number != EINVAL) throw_system_failure("make durable", folder, number);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_system_failure(text("rename '", from, "' to"), to, errno);
  const std::string folder = std::filesystem::path(to).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_system_failure("remove", path, errno);
}

void make_folder(const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw_system_failure("create folder", folder, failure.value());
}

std::uint64_t free_bytes(const std::string& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) throw_system_failure("look at folder", folder, errno);
  return static_cast<std::uint64_t>(status.f_bavail) * static_cast<std::uint64_t>(status.f_frsize);
}

std::string file_system_type(const std::string& folder) {
  struct Known {
    std::uint32_t magic;
    const char* name;
  };
  static constexpr std::array<Known, 14> known = {{{0xEF53, "ext4"},
                                                   {0x58465342, "xfs"},
                                                   {0x9123683E, "btrfs"},
                                                   {0x01021994, "tmpfs"},
                                                   {0x858458F6, "ramfs"},
                                                   {0x794C7630, "overlayfs"},
                                                   {0x2FC12FC1, "zfs"},
                                                   {0xF2F52010, "f2fs"},
                                                   {0x6969, "nfs"},
                                                   {0x0BD00BD0, "lustre"},
                                                   {0x47504653, "gpfs"},
                                                   {0x19830326, "beegfs"},
                                                   {0xFF534D42, "cifs"},
                                                   {0x65735546, "fuse"}}};
  struct statfs status = {};
  if (::statfs(folder.c_str(), &status) != 0) throw_system_failure("look at folder", folder, errno);
  const auto magic = static_cast<std::uint32_t>(status.f_type);
  const auto* found = std::find_if(known.begin(), known.end(), [&](const Known& one) { return one.magic == magic; });
  if (found != known.end()) return found->name;
  std::ostringstream stream;
  stream << "0x" << std::hex << magic;
  return stream.str();
}

}  // namespace lockstep
