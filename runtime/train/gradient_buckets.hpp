#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/plan/reduction_tree.hpp"
#include "runtime/train/flat_state.hpp"

namespace lockstep {

/// A stretch of a flat group whose gradients travel together.
struct Bucket {
  std::size_t group = 0;
  Slice range;                   ///< elements of the flat group
  std::int64_t num_awaited = 0;  ///< trainable parameters in it
};

/// Moves gradients into the flat slots while the backward pass goes on, and says when a stretch of them is whole, so
/// that its transfer to the other ranks can start before the rest is computed.
///
/// Hooks on the parameters do it, so a parameter's own gradient tensor lives for a moment only. Between begin() and
/// finish() exactly one backward pass runs. Local; the state must outlive it.
class GradientBuckets {
 public:
  using WholeBucket = std::function<void(const Bucket&)>;

  /// `bucket_bytes`: a bucket is closed when it holds as much; 0: one bucket a group.
  GradientBuckets(FlatState& state, std::int64_t bucket_bytes);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// From the last parameters, whose gradients come first, to the first ones; then what follows the parameters. The
  /// same on all ranks; together they cover the flat state.
  const std::vector<Bucket>& buckets() const { return buckets_; }

  /// The gradients of the next backward pass go to `where`. `on_whole` (may be empty) is called for each bucket, in
  /// the order of buckets(), when it is whole, from the thread of the backward pass.
  void begin(const TreeAccumulator::Deposit& where, WholeBucket on_whole);

  /// After the backward pass: parameters that the loss does not reach bring zeros, buffers bring their change times
  /// `buffer_weight`.
  void finish(double buffer_weight);

  /// Instead of finish(), when the pass failed: what it brought so far has no meaning.
  void cancel() { where_.reset(); }

 private:
  struct Parameter {
    std::size_t group = 0;
    std::size_t entry = 0;
    std::size_t bucket = 0;
    bool arrived = false;
  };

  void cut(std::size_t group, std::int64_t bucket_bytes);
  void arrive(Parameter& parameter);
  void complete(std::size_t bucket);

  FlatState& state_;
  std::vector<Bucket> buckets_;
  std::size_t num_early_ = 0;  ///< buckets that await parameters; the others come whole with finish()
  std::vector<Parameter> parameters_;
  std::optional<TreeAccumulator::Deposit> where_;  ///< absent: no pass is under way
  WholeBucket on_whole_;
  std::vector<std::int64_t> num_missing_;  ///< per bucket
  std::size_t num_announced_ = 0;          ///< buckets that on_whole_ was called for
};

}  // namespace lockstep
