#include "runtime/train/dataset.hpp"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "runtime/plan/error.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {

SourceDataset::SourceDataset(std::unique_ptr<SampleSource> source) : source_(std::move(source)) {
  if (source_->fields().size() != 2)
    throw Error(ErrorKind::usage,
                text("the data has ", source_->fields().size(),
                     " fields (two are trained on: inputs and targets): name exactly two datasets"));
}

std::int64_t SourceDataset::num_samples() const { return source_->num_samples(); }

at::Tensor SourceDataset::read(std::size_t field, std::span<const std::int64_t> ids) const {
  const FieldInfo& info = source_->fields()[field];
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(ids.size())};
  shape.insert(shape.end(), info.sample_shape.begin(), info.sample_shape.end());
  at::Tensor values = at::empty(shape, scalar_type_of(info.type));
  source_->read(field, ids, static_cast<std::byte*>(values.data_ptr()));
  return values;
}

Batch SourceDataset::get(std::span<const std::int64_t> ids) const {
  at::Tensor inputs = read(0, ids);
  at::Tensor targets = read(1, ids);
  const bool is_bytes = inputs.scalar_type() == at::kByte;
  inputs = inputs.to(at::kFloat);
  if (is_bytes) inputs.div_(255);
  targets = targets.to(targets.is_floating_point() ? at::kFloat : at::kLong);
  return {std::move(inputs), std::move(targets)};
}

}  // namespace lockstep
