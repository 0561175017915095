#include "drivers/train_data.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "io/digest.hpp"
#include "runtime/plan/error.hpp"
#include "runtime/plan/progress.hpp"
#include "runtime/plan/shape_text.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

std::unique_ptr<Hdf5Dataset> open_file(const std::string& path, const TrainCommand& command) {
  return std::make_unique<Hdf5Dataset>(path, std::vector<std::string>{command.inputs_name, command.targets_name});
}

std::int64_t num_elements(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_same_shapes(const TrainCommand& command, const TrainData& data) {
  for (std::size_t i = 0; i < data.training->fields().size(); ++i) {
    const FieldInfo& trained = data.training->fields()[i];
    const FieldInfo& validated = data.validation->fields()[i];
    if (trained.sample_shape != validated.sample_shape)
      throw Error(ErrorKind::usage,
                  text("a sample of '", validated.name, "' is ", shape_text(validated.sample_shape), " in ",
                       command.validation_data, " and ", shape_text(trained.sample_shape), " in ", command.train_data,
                       " (one model is for both): give a validation set of the same kind"));
  }
}

/// The largest class index of all targets. On one rank.
std::int64_t largest_class(Hdf5Dataset& data, const std::string& path) {
  constexpr std::int64_t piece = 1 << 16;
  const FieldInfo& field = data.fields()[1];
  if (field.type == ElementType::float32 || field.type == ElementType::float64 ||
      num_elements(field.sample_shape) != 1)
    throw Error(ErrorKind::usage, text("the targets '", field.name, "' of ", path, " are ", name_of(field.type),
                                       shape_text(field.sample_shape),
                                       " a sample (cross-entropy takes one class index): choose other targets with "
                                       "--targets-name, or --loss mse"));
  std::int64_t largest = 0;
  for (std::int64_t first = 0; first < data.num_samples(); first += piece) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(piece, data.num_samples() - first)));
    std::iota(ids.begin(), ids.end(), first);
    std::vector<std::byte> bytes(ids.size() * field.sample_bytes());
    data.read(1, ids, bytes.data());
    const at::Tensor targets =
        view_of(bytes.data(), {static_cast<std::int64_t>(ids.size())}, scalar_type_of(field.type)).to(at::kLong);
    if (targets.min().item<std::int64_t>() < 0)
      throw Error(ErrorKind::do_not_requeue,
                  text("the targets '", field.name, "' of ", path, " hold a negative class index: mend the data"));
    largest = std::max(largest, targets.max().item<std::int64_t>());
  }
  return largest;
}

/// **Collective.** The number of classes: as many as are asked for, or as the training set has.
std::int64_t num_classes_of(Communicator& communicator, const TrainCommand& command, TrainData& data) {
  std::string found;
  agree(communicator, [&] {
    if (communicator.rank() != 0) return;
    const std::int64_t largest = largest_class(*data.training, command.train_data);
    const std::int64_t num_classes = command.num_classes.value_or(largest + 1);
    const auto check = [&](std::int64_t index, const std::string& path) {
      if (index >= num_classes)
        throw Error(ErrorKind::usage, text(path, " holds the class ", index, ", but the model has ", num_classes,
                                           " classes (indices 0 to ", num_classes - 1, "): give --num-classes ",
                                           index + 1, ", or mend the data"));
    };
    check(largest, command.train_data);
    if (data.validation) check(largest_class(*data.validation, command.validation_data), command.validation_data);
    found = std::to_string(num_classes);
  });
  return std::stoll(broadcast_text(communicator, found));
}

}  // namespace

TrainData open_train_data(Communicator& communicator, const TrainCommand& command) {
  TrainData data;
  agree(communicator, [&] {
    data.training = open_file(command.train_data, command);
    if (command.validation_data.empty()) return;
    data.validation = open_file(command.validation_data, command);
    check_same_shapes(command, data);
  });
  return data;
}

ModelOptions resolve_model(Communicator& communicator, const TrainCommand& command, TrainData& data) {
  ModelOptions model = command.model;
  model.input_shape = data.training->fields()[0].sample_shape;
  model.num_outputs = command.loss == "cross-entropy" ? num_classes_of(communicator, command, data)
                                                      : num_elements(data.training->fields()[1].sample_shape);
  return model;
}

std::string sampled_digest(Communicator& communicator, Hdf5Dataset& data) {
  constexpr std::int64_t most_samples = 64;
  std::string found;
  agree(communicator, [&] {
    if (communicator.rank() != 0) return;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(most_samples, data.num_samples())));
    const double stride = static_cast<double>(data.num_samples()) / static_cast<double>(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(static_cast<double>(i) * stride);
    Digest digest;
    digest.add(data.num_samples());
    for (std::size_t i = 0; i < data.fields().size(); ++i) {
      const FieldInfo& field = data.fields()[i];
      digest.add(name_of(field.type));
      for (const std::int64_t extent : field.sample_shape) digest.add(extent);
      std::vector<std::byte> samples(ids.size() * field.sample_bytes());
      data.read(i, ids, samples.data());
      digest.add_bytes(samples);
    }
    found = hexadecimal(digest.value());
  });
  return broadcast_text(communicator, found);
}

void check_data_of_epoch(const CheckpointReader& checkpoint, const std::string& digest) {
  const AttributeTree& stored = checkpoint.attributes();
  if (!has_attribute(stored, "options", kTrainDataDigest)) return;
  const auto& before = attribute<std::string>(stored, "options", kTrainDataDigest);
  const Progress progress = progress_from(stored);
  if (before == digest || progress.sample_in_epoch == 0) return;
  throw Error(
      ErrorKind::usage,
      text("the training data are not those of ", checkpoint.path(), " (their digest is ", digest, ", it was ",
           before, "), which stands in the middle of epoch ", progress.epoch, ", after ", progress.sample_in_epoch,
           " of its samples (the rest of the epoch is not defined): resume with the same data, or start anew "
           "from the weights with --finetune-from"));
}

}  // namespace lockstep
