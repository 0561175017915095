// libFuzzer over the reader of checkpoints: each input is a file, tried as it is and with its header's digest made
// right.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/checkpoint_file.hpp"
#include "io/digest.hpp"

namespace {

// A file in memory, whose name any open() understands.
const std::string& file_with(const std::string& bytes) {
  static const int descriptor = ::memfd_create("checkpoint", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    __builtin_trap();
  }
  return path;
}

void open_and_verify(const std::string& bytes) {
  try {
    lockstep::CheckpointFile(file_with(bytes)).verify();
  } catch (const lockstep::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  open_and_verify(bytes);
  const std::string key = "header-digest: ";
  const std::size_t at = bytes.substr(0, lockstep::header_bytes).rfind(key);
  if (at == std::string::npos || at + key.size() + 16 > bytes.size()) return 0;
  const std::uint64_t digest = lockstep::digest_of(std::as_bytes(std::span(bytes.data(), at)));
  bytes.replace(at + key.size(), 16, lockstep::hexadecimal(digest));
  open_and_verify(bytes);
  return 0;
}
