#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/plan/communicator.hpp"
#include "runtime/plan/reduction_tree.hpp"

namespace lockstep {

/// A tensor of the model that lives in a flat buffer: a parameter, or a floating buffer (BatchNorm's statistics).
struct FlatEntry {
  std::string name;
  std::vector<std::string> aliases;  ///< further names of a tied parameter
  at::Tensor tensor;                 ///< the module's own handle
  std::int64_t offset = 0;           ///< first element in the flat buffer, on a 64-byte boundary
  bool is_parameter = true;
  bool trainable = false;
  bool has_moments = false;  ///< trainable now, or its moments came with a checkpoint
  std::int64_t updates = 0;  ///< optimizer updates it has had
};

/// All entries of one element type: parameters first, then buffers from a block boundary on.
struct FlatGroup {
  FlatLayout layout;
  std::int64_t parameter_blocks = 0;  ///< blocks before the first buffer
  std::vector<FlatEntry> entries;
  std::unique_ptr<FlatExchange> exchange;
  at::Tensor weights;                               ///< the whole flat state, for reading
  at::Tensor own_weights;                           ///< this rank's slice of it, for writing; publish() shows it
  std::vector<at::Tensor> weight_views;             ///< per entry
  std::vector<at::Tensor> slots;                    ///< the whole flat gradient, per slot
  std::vector<std::vector<at::Tensor>> slot_views;  ///< per slot and entry

  Slice slice() const { return exchange->slice(); }
  Slice parameter_slice() const;

  /// **Collective.** Makes what the ranks wrote to their `own_weights` visible on all of them.
  void publish();

  /// Whether a buffer's bits may differ from those of the flat state; on a device, where to ask would be to wait,
  /// always. Its version would not tell: batch norm moves its statistics without touching it.
  bool is_changed(std::size_t entry) const;

  /// Which elements of a buffer have the bits of the flat state. Does not wait for a device.
  at::Tensor unchanged_elements(std::size_t entry) const;
};

/// A tensor outside the flat buffers: a counter (integer buffer), a constant (other buffer), or a frozen parameter of
/// a type that is never trained. Equal on all ranks. Integer scalars stay in host memory, so that counting never
/// waits for a device.
struct LooseTensor {
  std::string name;
  std::vector<std::string> aliases;
  at::Tensor tensor;
  bool is_parameter = false;
  std::uint32_t version = 0;  ///< of the tensor when it equalled `committed`
  at::Tensor committed;       ///< its value before the step, in host memory
};

/// The model's state between steps, flat and shared between the ranks.
///
/// While the object lives, parameters are views into the flat weights (with shared memory one copy per node), and
/// writing to them outside of the optimizer step is an error that all ranks would see. When it goes, the module owns
/// ordinary tensors again. With a communicator of a device the module's tensors move there, and stay there. The
/// module and the communicator must outlive it.
class FlatState {
 public:
  /// **Collective.** Takes rank 0's values. `num_slots`: gradient buffers this rank's share of a step needs (the most
  /// of all ranks, the same on all). Throws Error when the ranks' models differ, or a trainable parameter is
  /// neither float32 nor float64.
  FlatState(torch::nn::Module& module, Communicator& communicator, int num_slots);
  ~FlatState();
  FlatState(const FlatState&) = delete;
  FlatState& operator=(const FlatState&) = delete;

  c10::Device device() const { return device_; }
  std::vector<FlatGroup>& groups() { return groups_; }
  const std::vector<FlatGroup>& groups() const { return groups_; }
  std::vector<LooseTensor>& loose() { return loose_; }
  const std::vector<LooseTensor>& loose() const { return loose_; }

  /// Whether any transfer gains from starting before the backward pass is over.
  bool overlaps() const;

  /// Puts the buffers back to the step's start and drops gradients. Before every micro-batch and every evaluation.
  void restore_buffers();

  /// Moves a trainable parameter's gradient into a slot; without one, zeros.
  void deposit_gradient(std::size_t group, std::size_t entry, const TreeAccumulator::Deposit& where);

  /// Moves what the forward pass did to the buffers, times `buffer_weight`, into a slot.
  void deposit_buffers(const TreeAccumulator::Deposit& where, double buffer_weight);

  /// The additions of slots that follow a deposit, over `range` of a group.
  void merge(std::size_t group, Slice range, const TreeAccumulator::Deposit& where);

  /// By how much the forward pass counted up each loose tensor. Throws Error for a buffer that changed in a way that
  /// has no rule.
  std::vector<double> counts() const;

  /// **Collective.** Makes the new flat state visible on all ranks; counters advance by `counts`.
  void publish(const std::vector<double>& counts);

  /// Takes back the counts of an update that was blocked.
  void take_back(const std::vector<double>& counts);

  /// Makes the module's buffers and counters equal to the state (after a restore).
  void refresh();

 private:
  void advance_counters(const std::vector<double>& counts, int by);
  void collect(torch::nn::Module& module);
  void lay_out();
  void allocate(Communicator& communicator, int num_slots);

  c10::Device device_;
  std::vector<FlatGroup> groups_;
  std::vector<LooseTensor> loose_;
};

}  // namespace lockstep
