#include "runtime/comm/shared_barrier.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <utility>

namespace lockstep {
namespace {

// To be woken takes longer than a rank is late as a rule.
constexpr int max_yields = 50;
constexpr int spins_between_yields = 1000;
constexpr std::timespec longest_sleep = {0, 100'000'000};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share no locks");
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "the kernel waits on the plain word");

/// std::atomic::wait() sleeps on a private word, which another process cannot wake.
void sleep_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &longest_sleep, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

SharedBarrier::SharedBarrier(std::byte* shared_memory, int num_ranks, int num_processors,
                             std::function<void()> while_waiting)
    : state_(*reinterpret_cast<State*>(shared_memory)),
      num_ranks_(static_cast<std::uint32_t>(num_ranks)),
      num_spins_(num_ranks <= num_processors ? spins_between_yields : 1),
      while_waiting_(std::move(while_waiting)) {}

void SharedBarrier::arrive_and_wait() {
  // The generation cannot move on before this rank has arrived.
  const std::uint32_t generation = state_.generation.load(std::memory_order_relaxed);
  // Arrivals form one release sequence, so the last rank acquires what all others wrote, and hands it on.
  if (state_.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < num_ranks_) {
    wait_while(generation);
    return;
  }
  state_.num_arrived.store(0, std::memory_order_relaxed);
  // Sequentially consistent with a sleeper's announcement: either it sees the new generation, or it is woken.
  state_.generation.store(generation + 1, std::memory_order_seq_cst);
  if (state_.num_sleeping.load(std::memory_order_seq_cst) != 0) wake_all(state_.generation);
}

void SharedBarrier::wait_while(std::uint32_t generation) const {
  const auto is_over = [&] { return state_.generation.load(std::memory_order_acquire) != generation; };
  for (int yield = 0; yield < max_yields; ++yield) {
    for (int spin = 0; spin < num_spins_; ++spin) {
      if (is_over()) return;
      pause_briefly();
    }
    ::sched_yield();
  }
  while (!is_over()) {
    state_.num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    sleep_while_equal(state_.generation, generation);
    state_.num_sleeping.fetch_sub(1, std::memory_order_relaxed);
    while_waiting_();
  }
}

}  // namespace lockstep
