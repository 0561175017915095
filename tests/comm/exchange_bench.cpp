// How long a step's exchange takes, next to MPI_Allreduce: mpirun -n 2 exchange_bench
//
// One round runs every way once, so that a busy machine slows all of them alike; the figures are medians over the
// rounds of the slowest rank's time, and of the ratios within a round.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/comm/make_communicator.hpp"
#include "runtime/comm/mpi_error.hpp"
#include "runtime/comm/mpi_session.hpp"

namespace lockstep {
namespace {

constexpr int num_warm_up_rounds = 2;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds that `work` took on the slowest rank, all ranks starting together.
double seconds_of(const MpiSession& session, const std::function<void()>& work) {
  check_mpi(MPI_Barrier(session.comm()), "MPI_Barrier");
  const auto begin = std::chrono::steady_clock::now();
  work();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, session.comm()), "MPI_Allreduce");
  return seconds;
}

/// A communicator and a flat state on it: gradients summed into the weights, and seen by all ranks.
class Contender {
 public:
  Contender(const MpiSession& session, CommunicatorKind kind, const FlatLayout& layout)
      : ranks_(make_communicator(session, kind, [](const std::string& line) { std::cout << line << '\n'; })),
        exchange_(ranks_->make_exchange(layout)) {
    std::vector<LeafRange> shares;
    for (int rank = 0; rank < session.num_ranks(); ++rank) shares.push_back({rank, rank + 1});
    program_ = make_tree_program(session.num_ranks(), shares);
    auto* gradients = reinterpret_cast<float*>(exchange_->gradient_slot(0));
    for (std::int64_t i = 0; i < layout.num_elements(); ++i) gradients[i] = static_cast<float>(i % 1000) * 1e-3f;
  }

  void run() {
    exchange_->reduce_slice(program_, exchange_->weights() + exchange_->slice().begin * 4);
    exchange_->publish_weights();
  }

 private:
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<FlatExchange> exchange_;
  TreeProgram program_;
};

void compare(const MpiSession& session, std::int64_t num_elements, int num_rounds) {
  FlatLayout layout;
  layout.num_blocks = (num_elements + layout.block_elements - 1) / layout.block_elements;
  std::vector<float> mine(static_cast<std::size_t>(layout.num_elements()), 0.5f);
  std::vector<float> sum(mine.size());
  Contender shared(session, CommunicatorKind::shared_memory, layout);
  Contender mpi(session, CommunicatorKind::mpi, layout);

  const std::vector<std::function<void()>> ways = {
      [&] {
        check_mpi(
            MPI_Allreduce(mine.data(), sum.data(), static_cast<int>(mine.size()), MPI_FLOAT, MPI_SUM, session.comm()),
            "MPI_Allreduce");
      },
      [&] { shared.run(); },
      [&] { mpi.run(); },
  };
  const char* names[] = {"MPI_Allreduce", "shared memory", "MPI"};
  std::vector<std::vector<double>> seconds(ways.size());
  std::vector<std::vector<double>> ratios(ways.size());
  for (int round = -num_warm_up_rounds; round < num_rounds; ++round) {
    std::vector<double> took(ways.size());
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t way = round % 2 == 0 ? i : ways.size() - 1 - i;  // there and back again
      took[way] = seconds_of(session, ways[way]);
    }
    if (round < 0) continue;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      seconds[i].push_back(took[i]);
      ratios[i].push_back(took[0] / took[i]);
    }
  }
  if (session.rank() != 0) return;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    std::printf("%9lld floats  %-14s  median %8.3f ms  best %8.3f ms  %5.2f times as fast as MPI_Allreduce\n",
                static_cast<long long>(layout.num_elements()), names[i], 1e3 * median(seconds[i]),
                1e3 * *std::min_element(seconds[i].begin(), seconds[i].end()), median(ratios[i]));
  }
}

}  // namespace
}  // namespace lockstep

int main() {
  try {
    const lockstep::MpiSession session;
    lockstep::compare(session, 16'384, 501);
    lockstep::compare(session, 1'200'000, 201);
    lockstep::compare(session, 25'000'000, 21);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
