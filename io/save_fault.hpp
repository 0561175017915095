#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The moments of a save at which a drill may strike, in order. Every rank passes all of them.
enum class SaveStage {
  start,     ///< nothing is on the disk
  skeleton,  ///< the temporary file is there, without elements
  copy,      ///< nothing is copied of what a save in the background copies
  data,      ///< half of this rank's bytes are written
  written,   ///< all of them, not yet durable
  durable,   ///< this rank's part is durable
  header,    ///< the file is complete under its temporary name
  renamed    ///< the checkpoint exists; older ones are not removed yet
};

/// A failure on purpose: "crash@save:data" kills this process as `kill -9` does, "fail@save:data" is a failed write.
/// Parts after the stage: ",rank=1" strikes one rank only, ",step=40" the save of that step only.
class SaveFault {
 public:
  SaveFault() = default;  ///< never strikes

  /// Reads the text above. Throws Error that lists the stages.
  static SaveFault parse(std::string_view text);

  /// Strikes when this is the chosen stage, rank and step. A failing one throws Error.
  void reach(SaveStage stage, int rank, std::int64_t step) const;

  /// The stages' names, for help texts.
  static std::vector<std::string> stage_names();

 private:
  enum class Action { none, crash, fail };

  Action action_ = Action::none;
  SaveStage stage_ = SaveStage::start;
  std::int64_t rank_ = -1;  ///< -1: all
  std::int64_t step_ = -1;  ///< -1: any
};

}  // namespace lockstep
