#include "io/digest.hpp"

#include <bit>
#include <new>

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "files and digests are little-endian");

std::uint64_t digest_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest::Digest() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Digest::add_bytes(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

void Digest::add(std::int64_t value) { add_bytes(std::as_bytes(std::span(&value, 1))); }

void Digest::add(std::uint64_t value) { add_bytes(std::as_bytes(std::span(&value, 1))); }

void Digest::add(double value) { add(std::bit_cast<std::uint64_t>(value)); }

void Digest::add(std::string_view value) {
  add(static_cast<std::uint64_t>(value.size()));
  add_bytes(std::as_bytes(std::span(value.data(), value.size())));
}

std::uint64_t Digest::value() const { return XXH3_64bits_digest(state_.get()); }

std::string hexadecimal(std::uint64_t value) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) out[i] = digits[value & 15];
  return out;
}

}  // namespace lockstep
