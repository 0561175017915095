#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"
#include "runtime/plan/snapshot.hpp"

namespace lockstep::test {

/// A training state for tests: whole tensors, equal on all ranks, cut as a trainer cuts them: each section is one
/// flat order in blocks, dealt to the ranks. Must outlive its snapshots.
class MadeState {
 public:
  explicit MadeState(std::int64_t block_elements = 64) : block_elements_(block_elements) {}

  /// Adds a tensor whose bytes follow from its name and `seed`.
  void add(const std::string& section, const std::string& name, ElementType type, std::vector<std::int64_t> shape,
           std::uint64_t seed = 1);

  /// Adds a tensor with these bytes.
  void add(const std::string& section, const std::string& name, ElementType type, std::vector<std::int64_t> shape,
           std::vector<std::byte> bytes);

  void add_alias(const std::string& section, const std::string& alias, const std::string& name);

  AttributeTree attributes;

  /// What rank `rank` of `num_ranks` would save.
  Snapshot snapshot(std::int64_t step, int rank, int num_ranks);

  std::size_t num_tensors() const { return tensors_.size(); }
  const TensorInfo& info(std::size_t index) const { return tensors_[index].info; }
  const std::vector<std::byte>& bytes(std::size_t index) const { return tensors_[index].bytes; }

 private:
  struct Tensor {
    TensorInfo info;
    std::vector<std::byte> bytes;
  };

  std::int64_t block_elements_;
  std::vector<Tensor> tensors_;
  std::vector<TensorAlias> aliases_;
};

/// An MLP with a frozen bfloat16 part, batch-norm buffers, two moments, a tied weight, and attributes of all types.
MadeState small_state(std::uint64_t seed = 1);

/// **Collective.** The names of tensors in `reader` that differ from `state`, each rank reading its own cut and
/// another rank's; empty when all are equal on all ranks.
std::string differences(Communicator& communicator, CheckpointReader& reader, MadeState& state);

/// Where a test's files are: on the disk, or in memory, where making them durable takes no time.
enum class Place { disk, memory };

/// **Collective.** A new empty folder, the same on all ranks, removed by remove_folder().
std::string make_test_folder(Communicator& communicator, Place place = Place::disk);
void remove_folder(Communicator& communicator, const std::string& folder);

}  // namespace lockstep::test
