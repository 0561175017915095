#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/plan/element_type.hpp"

namespace lockstep {

/// A tensor of the training state as the file sees it: whole, global, row-major.
struct TensorInfo {
  std::string section;  ///< "weights", "buffers", "optimizer/exp_avg", ...
  std::string name;     ///< the module's own name for it: "conv1.weight"
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape;  ///< empty for a 0-dimensional tensor

  std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
  }
};

/// One rank's part of a tensor: the elements [begin, end) of its row-major order, which lie at `data`.
///
/// In a save the parts of all ranks are disjoint and cover the tensor; a rank without a part has begin == end.
/// In a load a rank asks for any part it wants, also for overlapping ones.
/// Parts are cut only at 0, at the number of elements, and at `block_phase` + i x `block_elements`: those
/// boundaries do not depend on the rank count, so that a block's digest is computed by one rank alone.
struct TensorPart {
  TensorInfo info;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::byte* data = nullptr;  ///< not owned; read by a save, written by a load
  std::int64_t block_elements = 1 << 18;
  std::int64_t block_phase = 0;
};

/// A second name of a tensor that is stored once (tied weights).
struct TensorAlias {
  std::string section;
  std::string alias;
  std::string name;
};

/// The state of a run between two steps, as one rank holds it. The bytes stay where they are: whoever takes a
/// snapshot must not change them before the save has read them (CheckpointStore::wait_until_copied()). Attributes,
/// tensors and aliases are the same, in the same order, on all ranks; only the parts differ.
struct Snapshot {
  std::int64_t step = 0;  ///< steps taken; names the checkpoint
  AttributeTree attributes;
  std::vector<TensorPart> tensors;
  std::vector<TensorAlias> aliases;

  /// Returns when the bytes have come from where the state lives (a device): whoever reads them calls it first, in
  /// any thread. Throws where they will not come. Local.
  std::function<void()> wait_for_bytes = [] {};
};

}  // namespace lockstep
