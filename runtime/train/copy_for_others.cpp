#include "runtime/train/copy_for_others.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/copy_past_caches.hpp"

namespace lockstep {

void copy_for_others(const at::Tensor& from, const at::Tensor& to, Slice kept) {
  constexpr std::int64_t worth_a_thread = 32768;
  const auto bytes = [size = from.element_size()](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size;
  };
  const std::span source(static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes());
  auto* const target = static_cast<std::byte*>(to.data_ptr());
  at::parallel_for(0, from.numel(), worth_a_thread, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t kept_begin = std::clamp(kept.begin, begin, end);
    const std::int64_t kept_end = std::clamp(kept.end, kept_begin, end);
    const auto part = [&](std::int64_t first, std::int64_t last) {
      return source.subspan(bytes(first), bytes(last - first));
    };
    copy_past_caches(target + bytes(begin), part(begin, kept_begin));
    std::ranges::copy(part(kept_begin, kept_end), target + bytes(kept_begin));
    copy_past_caches(target + bytes(kept_end), part(kept_end, end));
  });
}

}  // namespace lockstep
