#pragma once

#include <cstdint>
#include <optional>

#include "runtime/comm/one_process_communicator.hpp"
#include "tests/support/mpi_main.hpp"
#include "tests/train/first_ranks.hpp"
#include "tests/train/memory_checkpoint.hpp"
#include "tests/train/training_case.hpp"

namespace lockstep::test {

/// The course of a training in one process that never stops: what every other way must reproduce. Local.
inline TrainingResult unbroken(const TrainingCase& what) {
  OneProcessCommunicator alone;
  TrainingRun run(what, alone);
  TrainingResult result;
  run.advance(result);
  return result;
}

/// **Collective.** Trains to step `stop` on all ranks, goes on with the first `resume_ranks` of them; the whole
/// course there, nothing on the other ranks.
inline std::optional<TrainingResult> stopped_and_resumed(const TrainingCase& what, std::int64_t stop,
                                                         int resume_ranks) {
  const auto everybody = make(CommunicatorKind::automatic);
  TrainingResult result;
  std::optional<MemoryCheckpoint> checkpoint;
  {
    TrainingRun run(what, *everybody);
    run.advance(result, stop);
    checkpoint.emplace(run.trainer().snapshot(), *everybody);
  }
  std::optional<TrainingResult> whole;
  on_first_ranks(resume_ranks, [&](Communicator& some) {
    TrainingRun run(what, some, &*checkpoint);
    run.advance(result);
    whole = result;
  });
  return whole;
}

}  // namespace lockstep::test
