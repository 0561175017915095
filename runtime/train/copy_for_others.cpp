#include "runtime/train/copy_for_others.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/copy_past_caches.hpp"

namespace lockstep {

void copy_for_others(const at::Tensor& from, const at::Tensor& to, Slice kept) {
  const auto bytes = [size = from.element_size()](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size;
  };
  const std::span source(static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes());
  auto* const target = static_cast<std::byte*>(to.data_ptr());
  const std::size_t kept_begin = bytes(std::clamp(kept.begin, std::int64_t{0}, from.numel()));
  const std::size_t kept_end = std::max(kept_begin, bytes(std::clamp(kept.end, std::int64_t{0}, from.numel())));
  copy_past_caches(target, source.first(kept_begin));
  std::ranges::copy(source.subspan(kept_begin, kept_end - kept_begin), target + kept_begin);
  copy_past_caches(target + kept_end, source.subspan(kept_end));
}

}  // namespace lockstep
