#include "runtime/plan/copy_past_caches.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep {

void copy_past_caches(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
#ifdef __SSE2__
  constexpr std::size_t width = sizeof(__m128i);
  const std::size_t to_boundary = (width - reinterpret_cast<std::uintptr_t>(to) % width) % width;
  const std::size_t head = std::min(to_boundary, from.size());
  std::memcpy(to, from.data(), head);
  std::size_t at = head;
  for (; at + width <= from.size(); at += width) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), bytes);
  }
  _mm_sfence();  // these stores are not ordered with others: whoever is told of them sees them
  std::memcpy(to + at, from.data() + at, from.size() - at);
#else
  std::memcpy(to, from.data(), from.size());
#endif
}

}  // namespace lockstep
