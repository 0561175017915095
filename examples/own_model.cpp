// A training program of one's own: your module, your data, your loss, on any number of ranks.
//
//   mpirun -n 2 own-model checkpoints      TERM, USR1 or USR2 stops it; run it again and it goes on, on any ranks
//
// Fits y = sin(x) with a small network; prints the error and a digest that does not depend on the ranks.

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <span>

#include "io/checkpoint_directory.hpp"
#include "runtime/comm/make_communicator.hpp"
#include "runtime/launch/stop_signals.hpp"
#include "runtime/train/trainer.hpp"
#include "runtime/train/weights_digest.hpp"

struct SineModel : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(1, 32));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(32, 1));

  at::Tensor forward(const at::Tensor& x) { return output(at::tanh(hidden(x))); }
};

struct SineData final : lockstep::Dataset {
  std::int64_t num_samples() const override { return 1000; }

  lockstep::Batch get(std::span<const std::int64_t> ids) const override {
    const at::Tensor x = at::empty({static_cast<std::int64_t>(ids.size()), 1});
    for (std::size_t i = 0; i < ids.size(); ++i) x.data_ptr<float>()[i] = static_cast<float>(ids[i]) * 0.006F - 3.0F;
    return {x, at::sin(x)};
  }
};

int train(const lockstep::MpiSession& session, const lockstep::StopSignals& signals, const char* folder) {
  const auto say = [](const std::string& line) { std::puts(line.c_str()); };
  const auto communicator = lockstep::make_communicator(session, lockstep::CommunicatorKind::automatic, say);
  torch::manual_seed(1);
  SineModel model;
  const SineData data;
  const auto loss = [&model](const lockstep::Batch& batch) -> lockstep::Loss {
    return at::mse_loss(model.forward(batch.inputs), batch.targets);
  };

  lockstep::TrainerOptions options;
  options.plan.global_batch_size = 50;
  options.plan.micro_batch_size = 10;
  options.plan.num_train_epochs = "20";
  options.plan.schedule.learning_rate = 0.01;

  lockstep::CheckpointOptions checkpoints;
  checkpoints.directory = folder;
  lockstep::CheckpointDirectory store(*communicator, checkpoints);
  const auto newest = store.open_newest();  // null on the first launch
  lockstep::Trainer trainer(model, loss, data, options, *communicator, newest.get());
  lockstep::RunControl control;
  control.save_steps = 100;
  control.stop_requested = [&signals] { return signals.requested(); };
  if (trainer.run(control, &store) == lockstep::RunOutcome::stopped) return 85;  // start it again: it goes on

  const auto results = trainer.evaluate(data, lockstep::metric_of(loss));
  if (session.rank() == 0)
    std::printf("mean squared error %.6f, digest %s\n", results.at("loss"), lockstep::weights_digest(model).c_str());
  return results.at("loss") < 0.01 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') return std::fputs("usage: own-model FOLDER_FOR_CHECKPOINTS\n", stderr), 2;
  const lockstep::StopSignals signals(lockstep::parse_stop_signals("TERM,USR1,USR2"));  // before any thread starts
  const lockstep::MpiSession session;
  try {
    return train(session, signals, argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own-model: rank %d: %s\n", session.rank(), error.what());
    session.abort(1);
  }
}
