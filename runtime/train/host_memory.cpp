#include "runtime/train/host_memory.hpp"

#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace lockstep {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int largest_mmap_threshold = 32 * 1024 * 1024;  // glibc takes no larger one
  mallopt(M_MMAP_THRESHOLD, largest_mmap_threshold);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace lockstep
