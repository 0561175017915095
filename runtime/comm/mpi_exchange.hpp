#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/aligned_buffer.hpp"
#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/mpi_communicator.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// A flat state whose every rank has weights and gradients of its own, exchanged over MPI.
///
/// Gradients travel as an all-to-all of slices, cut into rounds: while one round's sums are added up, the next one
/// is on its way. Staging memory stays under `max_staging_bytes`, whatever the number of ranks. Weights travel as an
/// all-gather of slices. Gradient slots may be written again as soon as reduce_slice() returns.
///
/// The communicator must outlive it.
class MpiExchange final : public FlatExchange {
 public:
  static constexpr std::int64_t max_staging_bytes = std::int64_t{64} << 20;

  /// `num_slots`: the gradient slots of each rank.
  MpiExchange(MpiCommunicator& communicator, const FlatLayout& layout, std::vector<int> num_slots);

  Slice slice() const override { return slice_of(layout_, communicator_.num_ranks(), communicator_.rank()); }
  std::byte* weights() override { return memory_.weights(); }
  std::byte* gradient_slot(int slot) override { return memory_.gradient_slot(slot); }

  void reduce_slice(const TreeProgram& program, std::byte* out) override;  ///< **collective**
  void publish_weights() override;                                         ///< **collective**

 private:
  /// One round's messages, and where what they bring is put.
  struct Round {
    std::vector<MPI_Request> requests;
    AlignedBuffer staging;
    std::vector<const std::byte*> inputs;  ///< of the tree program
    std::int64_t num_elements = 0;         ///< of this rank's slice
  };

  void start(Round& round, const TreeProgram& program, std::size_t index, std::int64_t max_elements);

  MpiCommunicator& communicator_;
  FlatLayout layout_;
  std::vector<int> num_slots_;
  PrivateFlatMemory memory_;
  std::array<Round, 2> rounds_;  ///< one on its way, one being added up
};

}  // namespace lockstep
