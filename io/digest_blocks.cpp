#include "io/digest_blocks.hpp"

#include <algorithm>

#include "runtime/plan/error.hpp"

namespace lockstep {

DigestBlocks::DigestBlocks(std::int64_t num_elements, std::int64_t block_elements, std::int64_t block_phase)
    : num_elements_(num_elements), block_elements_(block_elements), first_(0), count_(0) {
  if (block_elements <= 0 || num_elements < 0) {
    throw Error(ErrorKind::failed, text("a tensor of ", num_elements, " elements cannot be cut into blocks of ",
                                        block_elements, " (both must be positive)"));
  }
  const std::int64_t phase = (block_phase % block_elements + block_elements) % block_elements;
  first_ = std::min(num_elements, phase == 0 ? block_elements : phase);
  if (num_elements > 0) count_ = 1 + (num_elements - first_ + block_elements - 1) / block_elements;
}

std::int64_t DigestBlocks::begin(std::int64_t index) const {
  if (index == 0) return 0;
  if (index >= count_) return num_elements_;
  return first_ + (index - 1) * block_elements_;
}

std::int64_t DigestBlocks::index_at(std::int64_t element, const std::string& name) const {
  if (element == 0) return 0;
  if (element == num_elements_) return count_;
  const std::int64_t past_first = element - first_;
  if (past_first < 0 || element > num_elements_ || past_first % block_elements_ != 0) {
    throw Error(ErrorKind::failed,
                text("a part of tensor '", name, "' is cut at element ", element, " (digest blocks begin at ", first_,
                     " + i x ", block_elements_, "): cut it at a block"));
  }
  return 1 + past_first / block_elements_;
}

}  // namespace lockstep
