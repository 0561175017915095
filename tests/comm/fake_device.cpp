#include "tests/comm/fake_device.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/comm/mpi_error.hpp"
#include "runtime/comm/tree_kernel.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep::test {
namespace {

class FakeEvent final : public DeviceEvent {
 public:
  struct Mark {
    std::int64_t recorded = 0;
    std::int64_t passed = 0;
  };
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

FakeEvent::Mark& mark_of(DeviceEvent& event) { return *static_cast<FakeEvent&>(event).mark; }

std::string name_of(DeviceQueue queue) { return queue == DeviceQueue::caller ? "caller" : "transfer"; }

/// The messages of one group, and what is done when they are there.
struct Group {
  std::vector<std::function<void(Group&)>> posts;
  std::vector<std::function<void()>> ends;
  std::vector<MPI_Request> requests;
  bool is_posted = false;

  ~Group() {
    for (MPI_Request& request : requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
};

template <class T>
void add(std::byte* sum, const std::byte* other, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) reinterpret_cast<T*>(sum)[i] += reinterpret_cast<const T*>(other)[i];
}

}  // namespace

class FakeChannel final : public DeviceChannel {
 public:
  FakeChannel(FakeDevice& device, int num_ranks, int rank)
      : device_(device), num_ranks_(num_ranks), rank_(rank), polls_left_(device.num_working_polls) {}

  ChannelState state() override {
    if (!device_.failure.empty()) return ChannelState::failed;
    return polls_left_-- > 0 ? ChannelState::working : ChannelState::ready;
  }
  std::string problem() override { return device_.failure; }
  void abort() noexcept override {
    device_.was_aborted = true;
    device_.transfer_.clear();
  }

  void begin_group() override {
    group_ = std::make_shared<Group>();
    line_ = "group:";
  }
  void end_group() override {
    device_.log.push_back(line_);
    polls_left_ = device_.num_working_polls;
    device_.transfer_.emplace_back([group = std::move(group_)] {
      if (!std::exchange(group->is_posted, true)) {
        for (const auto& post : group->posts) post(*group);
      }
      int done = 0;
      check_mpi(
          MPI_Testall(static_cast<int>(group->requests.size()), group->requests.data(), &done, MPI_STATUSES_IGNORE),
          "MPI_Testall");
      if (done == 0) return false;
      for (const auto& end : group->ends) end();
      return true;
    });
  }

  void send(const std::byte* from, std::int64_t count, ElementType type, int rank) override {
    line_ += text(" send ", rank);
    post_send(from, bytes(count, type), rank);
  }
  void receive(std::byte* into, std::int64_t count, ElementType type, int rank) override {
    line_ += text(" receive ", rank);
    post_receive(into, bytes(count, type), rank);
  }
  void reduce(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) override {
    line_ += text(" reduce ", root);
    reduce_to(from, into, count, type, root);
  }
  void reduce_scatter(const std::byte* from, std::byte* into, std::int64_t count, ElementType type) override {
    line_ += " reduce_scatter";
    for (int root = 0; root < num_ranks_; ++root) {
      reduce_to(from + root * bytes(count, type), root == rank_ ? into : nullptr, count, type, root);
    }
  }
  void broadcast(std::byte* in_place, std::int64_t count, ElementType type, int root) override {
    line_ += text(" broadcast ", root);
    broadcast_from(in_place, bytes(count, type), root);
  }
  void all_gather(std::byte* all, std::int64_t count, ElementType type) override {
    line_ += " all_gather";
    for (int root = 0; root < num_ranks_; ++root) {
      broadcast_from(all + root * bytes(count, type), bytes(count, type), root);
    }
  }

 private:
  static std::int64_t bytes(std::int64_t count, ElementType type) {
    return count * static_cast<std::int64_t>(size_of(type));
  }

  void post_send(const std::byte* from, std::int64_t num_bytes, int rank) {
    group_->posts.emplace_back([=, comm = device_.comm_](Group& group) {
      group.requests.emplace_back();
      check_mpi(MPI_Isend(from, static_cast<int>(num_bytes), MPI_BYTE, rank, 0, comm, &group.requests.back()),
                "MPI_Isend");
    });
  }
  void post_receive(std::byte* into, std::int64_t num_bytes, int rank) {
    group_->posts.emplace_back([=, comm = device_.comm_](Group& group) {
      group.requests.emplace_back();
      check_mpi(MPI_Irecv(into, static_cast<int>(num_bytes), MPI_BYTE, rank, 0, comm, &group.requests.back()),
                "MPI_Irecv");
    });
  }
  void broadcast_from(std::byte* in_place, std::int64_t num_bytes, int root) {
    if (rank_ != root) return post_receive(in_place, num_bytes, root);
    for (int other = 0; other < num_ranks_; ++other) {
      if (other != root) post_send(in_place, num_bytes, other);
    }
  }
  /// The root's own values first, then those of the others from the last rank down: no tree's order.
  void reduce_to(const std::byte* from, std::byte* into, std::int64_t count, ElementType type, int root) {
    if (rank_ != root) return post_send(from, bytes(count, type), root);
    auto parts = std::make_shared<std::vector<AlignedBuffer>>();
    for (int other = num_ranks_ - 1; other >= 0; --other) {
      if (other == root) continue;
      parts->emplace_back(static_cast<std::size_t>(bytes(count, type)));
      post_receive(parts->back().data(), bytes(count, type), other);
    }
    group_->ends.emplace_back([=] {
      std::memcpy(into, from, static_cast<std::size_t>(bytes(count, type)));
      for (const AlignedBuffer& part : *parts) {
        type == ElementType::float32 ? add<float>(into, part.data(), count) : add<double>(into, part.data(), count);
      }
    });
  }

  FakeDevice& device_;
  int num_ranks_;
  int rank_;
  int polls_left_;
  std::string line_;
  std::shared_ptr<Group> group_;
};

FakeDevice::FakeDevice(const MpiSession& session, Pace pace) : rank_(session.rank()), pace_(pace) {
  check_mpi(MPI_Comm_dup(session.comm(), &comm_), "MPI_Comm_dup");
}

FakeDevice::~FakeDevice() { MPI_Comm_free(&comm_); }

void FakeDevice::run_on_caller(std::function<void()> work) {
  caller_.emplace_back([work = std::move(work)] {
    work();
    return true;
  });
}

void FakeDevice::synchronize() {
  while (!caller_.empty() || !transfer_.empty()) progress();
}

std::string FakeDevice::identity() const {
  return identity_text.empty() ? text("fake device ", rank_) : identity_text;
}

std::byte* FakeDevice::allocate(std::size_t num_bytes) {
  AlignedBuffer buffer(num_bytes);
  std::byte* const memory = buffer.data();
  memory_.emplace(memory, std::move(buffer));
  return memory;
}

void FakeDevice::release(std::byte* memory) noexcept {
  was_released_busy = was_released_busy || !transfer_.empty();
  memory_.erase(memory);
}

std::unique_ptr<DeviceEvent> FakeDevice::make_event() { return std::make_unique<FakeEvent>(); }

void FakeDevice::record(DeviceEvent& event, DeviceQueue queue) {
  log.push_back(name_of(queue) + " records");
  const std::int64_t ticket = ++mark_of(event).recorded;
  queue_of(queue).emplace_back([mark = static_cast<FakeEvent&>(event).mark, ticket] {
    mark->passed = std::max(mark->passed, ticket);
    return true;
  });
}

void FakeDevice::wait(DeviceQueue queue, DeviceEvent& event) {
  log.push_back(name_of(queue) + " waits");
  const std::int64_t ticket = mark_of(event).recorded;
  queue_of(queue).emplace_back(
      [mark = static_cast<FakeEvent&>(event).mark, ticket] { return mark->passed >= ticket; });
  if (pace_ == Pace::at_once && queue == DeviceQueue::caller) synchronize();
}

bool FakeDevice::is_done(DeviceEvent& event) {
  progress();
  return mark_of(event).passed == mark_of(event).recorded;
}

void FakeDevice::evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                               std::int64_t num_elements, std::byte* out) {
  log.push_back(text("tree ", program.num_inputs));
  transfer_.emplace_back([program, type, pointers = std::vector(inputs.begin(), inputs.end()), num_elements, out] {
    lockstep::evaluate_tree(program, type, pointers, num_elements, out);
    return true;
  });
}

std::unique_ptr<DeviceChannel> FakeDevice::connect(const ChannelId& id, int num_ranks, int rank) {
  if (id[0] != std::byte{42}) failure = "rank 0's id did not come";
  return std::make_unique<FakeChannel>(*this, num_ranks, rank);
}

bool FakeDevice::advance(DeviceQueue queue) {
  std::deque<Work>& works = queue_of(queue);
  if (works.empty() || (queue == DeviceQueue::transfer && is_stalled) || !works.front()()) return false;
  works.pop_front();
  return true;
}

void FakeDevice::progress() {
  const bool caller_leads = pace_ == Pace::caller_first;
  const DeviceQueue leader = caller_leads ? DeviceQueue::caller : DeviceQueue::transfer;
  const DeviceQueue other = caller_leads ? DeviceQueue::transfer : DeviceQueue::caller;
  while (true) {
    while (advance(leader)) {
    }
    if (!advance(other)) return;
  }
}

WaitClock hurried_clock(std::shared_ptr<const bool> hurries) {
  auto ahead = std::make_shared<double>(0.0);  // of the real time
  const WaitClock real = WaitClock::steady();
  return {[=] { return real.seconds() + *ahead; },
          [=](double seconds) {
            // A roll call sleeps longest, and other ranks must really have the time to answer it.
            const bool is_roll_call = seconds >= 1e-3;
            if (*hurries) *ahead += is_roll_call ? 0.02 : 0.1;
            real.sleep(is_roll_call ? 10e-3 : 50e-6);
          }};
}

}  // namespace lockstep::test
