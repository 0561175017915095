#pragma once

#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// The one rank of a run that needs no launcher and no MPI: every collective call is a copy or nothing at all.
class OneProcessCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int num_ranks() const override { return 1; }
  int local_rank() const override { return 0; }
  std::string name() const override { return "one process"; }

  void barrier() override {}
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<const std::size_t> counts,
                  std::span<std::byte> all) override;
  std::unique_ptr<FlatExchange> make_exchange(const FlatLayout& layout) override;
};

}  // namespace lockstep
