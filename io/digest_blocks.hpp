#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/snapshot.hpp"

namespace lockstep {

/// The blocks whose digests a checkpoint stores for one tensor: the elements up to `phase`, then `block_elements`
/// each, then the rest. A pure function of the tensor, never of the ranks.
class DigestBlocks {
 public:
  /// Throws Error when block_elements is not positive.
  DigestBlocks(std::int64_t num_elements, std::int64_t block_elements, std::int64_t block_phase);

  std::int64_t count() const { return count_; }

  /// Block `index` holds the elements [begin(index), begin(index + 1)).
  std::int64_t begin(std::int64_t index) const;

  /// The block that begins at `element`, or count() for the tensor's end. Throws Error when none does:
  /// a part was cut within a block, `name` says of which tensor.
  std::int64_t index_at(std::int64_t element, const std::string& name) const;

 private:
  std::int64_t num_elements_;
  std::int64_t block_elements_;
  std::int64_t first_;  ///< elements of the first block
  std::int64_t count_;
};

}  // namespace lockstep
