#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/plan/communicator.hpp"
#include "runtime/train/flat_state.hpp"

namespace lockstep {

/// The numbers that decide about a step's update, gathered from all ranks on the device, so that it need not wait for
/// the host: the losses of the micro-batches, and the squares of the blocks of every rank's slice.
///
/// The host reads them later, in the order of the fetches. State and communicator must outlive it.
class StepNumbers {
 public:
  /// **Collective.** `most_losses`: the most micro-batches that a rank has in a step.
  StepNumbers(const FlatState& state, Communicator& communicator, std::int64_t most_losses);

  /// **Collective.** Gathers this rank's losses, each times its weight, and the squares of its slices. Returns before
  /// it is done.
  void gather(const std::vector<at::Tensor>& losses, const std::vector<double>& weights,
              const std::vector<at::Tensor>& slices);

  /// Of what was gathered last, on the device: whether all of it is finite, and the sum of the squares of all
  /// parameters in the order of the tree, the bits that the host gets.
  at::Tensor all_finite() const;
  at::Tensor sum_of_squares() const;

  /// Begins to copy what was gathered last to the host.
  void fetch();

  /// What a fetch brought.
  struct Fetched {
    at::Tensor numbers;  ///< a row for each rank
    std::function<bool()> is_there;
  };

  /// Waits for the oldest fetch and takes it. Throws as Communicator::wait_until().
  Fetched take();
  void forget() { fetches_.clear(); }

  bool all_finite(const Fetched& fetched) const;
  double loss(const Fetched& fetched, int rank, std::int64_t index) const;
  double sum_of_squares(const Fetched& fetched) const;

 private:
  struct Group {
    std::int64_t first = 0;             ///< in each rank's row
    std::vector<std::int64_t> indices;  ///< of the blocks of parameters, in order, over all rows
    at::Tensor on_device;               ///< the same
  };

  const FlatState& state_;
  Communicator& communicator_;
  std::int64_t row_size_ = 0;
  std::vector<Group> groups_;
  std::unique_ptr<FlatExchange> exchange_;  ///< its "weights" are the rows
  at::Tensor all_rows_;
  at::Tensor own_row_;
  std::deque<Fetched> fetches_;
};

}  // namespace lockstep
