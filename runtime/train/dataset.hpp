#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/plan/sample_source.hpp"

namespace lockstep {

/// Some samples, stacked along the first dimension.
struct Batch {
  at::Tensor inputs;   ///< [n, ...]
  at::Tensor targets;  ///< [n, ...]

  std::int64_t size() const { return inputs.size(0); }
};

/// Who has the samples: every rank all of them, or each rank its own (it opened files of its own).
enum class DataSharding { shared, by_rank };

/// What a run trains or evaluates on: any sample, in any order. Every rank sees the whole set and asks for its part;
/// or the data shards itself, and each rank trains on its own samples (then they are not divided a second time).
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Of the whole set; of this rank's own samples when the data shards itself.
  virtual std::int64_t num_samples() const = 0;

  /// The same on all ranks. Evaluation needs shared data.
  virtual DataSharding sharding() const { return DataSharding::shared; }

  /// The samples `ids` (0 <= id < num_samples()), in that order. A pure function of the ids: the same sample is the
  /// same tensor on every rank and in every epoch. Random augmentation draws from LibTorch's default generator,
  /// which the trainer seeds for each micro-batch before this call.
  virtual Batch get(std::span<const std::int64_t> ids) const = 0;
};

/// A Dataset over the two fields (inputs, targets) of a SampleSource, as image sets are stored:
/// uint8 inputs become float32 in [0, 1] (divided by 255), other inputs float32 as they are;
/// integer targets become int64 (class indices), floating ones float32.
class SourceDataset final : public Dataset {
 public:
  /// `source` has exactly two fields, inputs first.
  explicit SourceDataset(std::unique_ptr<SampleSource> source);

  std::int64_t num_samples() const override;
  Batch get(std::span<const std::int64_t> ids) const override;

 private:
  at::Tensor read(std::size_t field, std::span<const std::int64_t> ids) const;

  std::unique_ptr<SampleSource> source_;
};

}  // namespace lockstep
