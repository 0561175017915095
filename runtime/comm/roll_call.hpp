#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// What waiting is measured with. A test puts its own in.
struct WaitClock {
  std::function<double()> seconds;
  std::function<void(double)> sleep;

  static WaitClock steady();
};

enum class OperationKind : std::int64_t { connect, reduce, publish, agree };

/// The exchange that a rank came to last: they are numbered from 1, alike on all ranks.
struct Operation {
  std::int64_t number = 0;
  OperationKind kind = OperationKind::connect;

  friend bool operator==(const Operation&, const Operation&) = default;
};

/// "operation 14 (sum of the gradients)".
std::string name_of(const Operation& operation);

/// Who is there when a device has waited too long: each rank that waits tells all others by a message through MPI
/// where it is, and hears the same from those that wait, too.
///
/// Not collective: the point is that some rank may not come. Messages that nobody took stay behind, so it is held
/// before a run ends, once. The MPI communicator must outlive it.
class RollCall {
 public:
  explicit RollCall(MPI_Comm comm) : comm_(comm) {}

  /// Whether another rank holds one: those that wait for their device should join it at once. Local call.
  bool is_called() const;

  /// Where each rank is, none for those that did not answer within `grace_seconds`. Ends early when all did.
  std::vector<std::optional<Operation>> hold(const Operation& mine, double grace_seconds, const WaitClock& clock);

 private:
  MPI_Comm comm_;
};

/// What a roll call found, as the first half of a message: "rank 2 did not come to operation 14 (...) and does not
/// answer"; empty when all ranks came to `mine`.
std::string describe_absence(const std::vector<std::optional<Operation>>& answers, const Operation& mine);

}  // namespace lockstep
