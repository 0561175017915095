#pragma once

#include <cstddef>
#include <span>

namespace lockstep {

/// Copies bytes that this thread does not read soon, past the processor's caches where it can: what would be fetched
/// only to be overwritten stays where it is, so that memory moves a third less; and lines that other processors hold
/// need not be taken back from them one by one. After it a barrier makes the bytes visible, as after any copy.
void copy_past_caches(std::byte* to, std::span<const std::byte> from);

}  // namespace lockstep
