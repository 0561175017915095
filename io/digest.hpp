#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// The digest of bytes in one piece: XXH3, 64 bits. Do not change it: it is in the files.
std::uint64_t digest_of(std::span<const std::byte> bytes);

/// The same digest of bytes that come in pieces, and of values in an order that the caller keeps.
///
/// Numbers go in as 8 little-endian bytes, texts as their length and their bytes, so that no two lists of values
/// are the same bytes.
class Digest {
 public:
  Digest();

  void add_bytes(std::span<const std::byte> bytes);
  void add(std::int64_t value);
  void add(std::uint64_t value);
  void add(double value);  ///< its bits
  void add(std::string_view value);

  std::uint64_t value() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeState> state_;
};

/// 16 hexadecimal digits, as digests are printed.
std::string hexadecimal(std::uint64_t value);

}  // namespace lockstep
