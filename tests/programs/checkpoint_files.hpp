#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "io/checkpoint_directory.hpp"
#include "runtime/comm/one_process_communicator.hpp"
#include "runtime/plan/snapshot.hpp"
#include "runtime/plan/training_plan.hpp"

namespace lockstep::test {

/// The state of a small run, to be changed and saved: what the tests of lockstep-checkpoint look at.
class SmallRun {
 public:
  struct Tensor {
    TensorInfo info;
    std::vector<std::byte> bytes;
  };

  /// 20 samples, global batches of 4 cut for `num_ranks`, three epochs.
  explicit SmallRun(int num_ranks = 1)
      : num_ranks_(num_ranks), plan_(TrainingPlan::fresh(options(), data(), num_ranks)) {
    add<float>("weights", "conv.weight", ElementType::float32, {2, 1, 2, 2}, {-1, 0.5f, 2, 0, 3, -4, 1, 1});
    add<float>("optimizer/exp_avg", "conv.weight", ElementType::float32, {2, 1, 2, 2}, std::vector<float>(8, 0.25f));
    add<std::int64_t>("buffers", "norm.num_batches_tracked", ElementType::int64, {}, {41});
    facts["loss_scaler"] = {{"scale", 1024.0}, {"growth_tracker", std::int64_t{7}}};
    facts["options"] = {{"save_steps", std::int64_t{5}}};
  }

  template <class T>
  void add(const std::string& section, const std::string& name, ElementType type, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    Tensor tensor{{section, name, type, std::move(shape)}, std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors.push_back(std::move(tensor));
  }

  /// Takes steps of the plan, reading the samples that it names.
  void take_steps(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const StepPlan step = plan_.next_step();
      std::vector<std::int64_t> ids(static_cast<std::size_t>(step.num_samples));
      plan_.sample_ids(step.epoch, step.first_sample, ids);
      std::uint64_t mark = 0;
      for (std::size_t j = 0; j < ids.size(); ++j) {
        mark += sample_mark(step.epoch, step.first_sample + static_cast<std::int64_t>(j), ids[j] + wrong_ids);
      }
      plan_.complete_step(true, 1, mark);
    }
  }

  /// Goes on from what it would have stored, on another number of ranks.
  void resume_on(int num_ranks) {
    AttributeTree stored;
    plan_.store(stored);
    num_ranks_ = num_ranks;
    plan_ = TrainingPlan::resumed(options(), data(), num_ranks, stored);
  }

  /// Writes a checkpoint into `folder` and returns its path.
  std::string save(const std::string& folder) {
    Snapshot snapshot;
    snapshot.step = plan_.progress().steps_taken;
    snapshot.attributes = facts;
    plan_.store(snapshot.attributes);
    snapshot.aliases = aliases;
    for (Tensor& tensor : tensors) {
      snapshot.tensors.push_back({tensor.info, 0, tensor.info.num_elements(), tensor.bytes.data()});
    }
    OneProcessCommunicator communicator;
    CheckpointOptions options;
    options.directory = folder;
    options.versions = "test 1.0";
    CheckpointDirectory directory(communicator, options);
    directory.start_save(snapshot);
    directory.finish();
    return folder + "/" + checkpoint_file_name(snapshot.step);
  }

  std::vector<Tensor> tensors;
  std::vector<TensorAlias> aliases;
  AttributeTree facts;
  std::int64_t wrong_ids = 0;  ///< added to every id that the run reads: a bug of its reader

 private:
  static PlanOptions options() {
    PlanOptions options;
    options.global_batch_size = 4;
    options.micro_batch_size = 1;
    options.num_train_epochs = "3";
    options.seed = 1;
    return options;
  }
  static DataShape data() {
    DataShape data;
    data.num_samples = 20;
    return data;
  }

  int num_ranks_;
  TrainingPlan plan_;
};

}  // namespace lockstep::test
