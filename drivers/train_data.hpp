#pragma once

#include <memory>
#include <string>

#include "drivers/train_models.hpp"
#include "drivers/train_options.hpp"
#include "io/dataset_reader.hpp"
#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep {

/// What a command trains on and what it evaluates on. Every rank has opened the files for itself.
struct TrainData {
  std::unique_ptr<Hdf5Dataset> training;
  std::unique_ptr<Hdf5Dataset> validation;  ///< null: none is named
};

/// **Collective.** Throws Error(usage) for a file that cannot be used, and for a validation set whose samples are not
/// shaped as the training set's.
TrainData open_train_data(Communicator& communicator, const TrainCommand& command);

/// **Collective.** The command's model with the sizes that its data ask for. Throws Error where the targets of either
/// set are none that the loss can take: for cross-entropy each is the index of a class that the model has.
ModelOptions resolve_model(Communicator& communicator, const TrainCommand& command, TrainData& data);

/// **Collective.** A digest of the types and shapes of a set and of samples spread over it: the same for the same
/// data in another file, and read in no time however large the set is. A change of other samples goes unseen.
std::string sampled_digest(Communicator& communicator, Hdf5Dataset& data);

/// The option under which checkpoints hold the training set's sampled_digest().
inline constexpr const char* kTrainDataDigest = "train-data-digest";

/// Throws Error(usage) where `checkpoint` stands in the middle of an epoch of other data than those of `digest`: the
/// rest of that epoch is not defined. Between two epochs the data may change.
void check_data_of_epoch(const CheckpointReader& checkpoint, const std::string& digest);

}  // namespace lockstep
