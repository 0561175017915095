"""A run of lockstep-train as people and tools see it: its output, its files, the example of one's own model."""

import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from train_support import SMALL_RUN, TrainTest, checkpoints, launch, main, metrics, program

PARAMETERS = ["layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"]


class RunTest(TrainTest):
    def trained(self):
        folder = os.path.join(self.folder, "trained")
        if not os.path.exists(folder):
            type(self).output = self.train(2, folder, "--num-train-epochs", "1", "--validation-data", self.data)
        return os.path.join(folder, checkpoints(folder)[-1])

    def test_the_plan_is_told_at_the_start_and_the_digest_at_the_end(self):
        self.trained()
        for pattern in (r"171 samples, global batch 40, micro-batch 4", r"5 steps an epoch, 5 in all", r"2 ranks",
                        r"digest +[0-9a-f]{32}", r"accuracy"):
            self.assertRegex(self.output, pattern)
        self.assertNotIn("\r", self.output)

    def test_metrics_have_one_object_a_step(self):
        steps, evaluations = metrics(os.path.dirname(self.trained()))
        self.assertEqual([row["consumed_samples"] for row in steps], [40, 80, 120, 160, 171])
        self.assertEqual(len(evaluations), 1)
        for key in ("step", "epoch", "lr", "loss", "grad_norm", "loss_scale", "samples_per_second"):
            self.assertIn(key, steps[0])

    def test_h5dump_reads_the_checkpoint(self):
        file = self.trained()
        header = subprocess.run(["h5dump", "-H", file], capture_output=True, text=True, check=True).stdout
        for name in PARAMETERS:
            self.assertGreaterEqual(header.count(f'DATASET "{name}"'), 3, name)  # the weights and two moments
        for group in ("progress", "schedule", "loss_scaler", "optimizer"):
            self.assertIn(f'GROUP "{group}"', header)
        values = subprocess.run(["h5dump", "-d", "/weights/layer1.bias", file], capture_output=True, text=True, check=True)
        self.assertEqual(len(re.findall(r"-?\d\.\d+", values.stdout.split("DATA {")[1].split("}")[0])), 10)

    def test_the_program_flushes_subnormals(self):
        told = subprocess.run(["h5dump", "-a", "/numerics/subnormals", self.trained()], capture_output=True, text=True,
                              check=True)
        self.assertIn('"flushed"', told.stdout)

    def test_h5py_reads_the_checkpoint(self):
        has_h5py = lambda python: subprocess.run([python, "-c", "import h5py"], stderr=subprocess.DEVNULL).returncode == 0
        python = next(filter(has_h5py, filter(os.path.exists, (sys.executable, "/usr/bin/python3"))), None)
        if python is None:
            self.skipTest("no Python here has h5py")
        lines = ("import h5py, sys\n"
                 "file = h5py.File(sys.argv[1])\n"
                 "print(file['weights/layer0.weight'][...].shape, file['progress'].attrs['epoch'])\n")
        done = subprocess.run([python, "-c", lines, self.trained()], capture_output=True, text=True)
        self.assertEqual(done.stdout, "(16, 784) 1\n", done.stderr)

    def test_both_communicators_and_both_writers_give_the_same(self):
        reference = self.trained()
        for ranks, options in ((3, ["--communicator", "mpi"]), (2, ["--checkpoint-writer", "collective"])):
            folder = self.path("-".join(options[:2]).strip("-"))
            self.train(ranks, folder, "--num-train-epochs", "1", *options)
            self.assert_same_state(reference, os.path.join(folder, checkpoints(folder)[-1]))

    def test_saves_beside_the_steps_and_between_them_hold_the_same(self):
        folders = {when: self.path(when) for when in ("on", "off")}
        for ranks, when in ((4, "on"), (2, "off")):
            self.train(ranks, folders[when], "--num-train-epochs", "1", "--save-steps", "1", "--async-save", when)
        self.assertEqual(len(checkpoints(folders["off"])), 5)
        self.assertEqual(checkpoints(folders["on"]), checkpoints(folders["off"]))
        for name in checkpoints(folders["off"]):
            self.assert_same_state(*(os.path.join(folder, name) for folder in folders.values()))
        self.assert_same_state(self.trained(), os.path.join(folders["on"], name))

    def test_files_of_two_and_three_ranks_differ_in_their_provenance_alone(self):
        folder = self.path("run")
        self.train(3, folder, "--num-train-epochs", "1", "--validation-data", self.data)
        other = os.path.join(folder, checkpoints(folder)[-1])
        done = subprocess.run(["h5diff", "-v", "--exclude-path", "/provenance", self.trained(), other],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with_provenance = subprocess.run(["h5diff", self.trained(), other], capture_output=True, text=True)
        self.assertEqual(with_provenance.returncode, 1, "three ranks leave no trace of themselves")

    def test_a_configuration_file_says_the_same(self):
        file = self.path("options.ini")
        with open(file, "w") as out:
            for name, value in zip(SMALL_RUN[::2], SMALL_RUN[1::2]):
                out.write(f"{name[2:]}={value}\n")
        folder = self.path("run")
        done = launch(2, "--config", file, "--train-data", self.data, "--num-train-epochs", "1", "--checkpoint-dir", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_state(self.trained(), os.path.join(folder, checkpoints(folder)[-1]))

    def test_weights_start_another_run(self):
        folder = self.path("run")
        output = self.train(2, folder, "--max-steps", "4", "--finetune-from", self.trained())
        self.assertIn("weights      from", output)
        other = [*SMALL_RUN]
        other[other.index("--hidden-sizes") + 1] = "24"
        done = launch(2, "--train-data", self.data, *other, "--max-steps", "4", "--finetune-from", self.trained())
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("layer0.weight", done.stderr)

    def test_a_model_of_ones_own_trains_the_same_on_any_ranks(self):
        digests = set()
        for ranks in (1, 2):
            done = launch(ranks, self.path(f"on-{ranks}"), name="own-model")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            digests.add(re.search(r"digest ([0-9a-f]{32})", done.stdout).group(1))
        folder = self.path("run")
        for ranks in (2, 1):
            done = launch(ranks, folder, name="own-model")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            digests.add(re.search(r"digest ([0-9a-f]{32})", done.stdout).group(1))
        self.assertEqual(len(digests), 1)

    def test_a_model_of_ones_own_stops_with_its_state_saved(self):
        folder = self.path("run")
        whole = launch(1, self.path("whole"), name="own-model").stdout
        # The signal waits while libraries are being loaded.
        with subprocess.Popen([program("own-model"), folder], stdout=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})) as run:
            run.send_signal(signal.SIGUSR1)
            output = run.stdout.read()
        self.assertEqual(run.returncode, 85, output)
        self.assertNotIn("digest", output)
        self.assertEqual(len(checkpoints(folder)), 1)
        self.assertEqual(launch(2, folder, name="own-model").stdout.splitlines()[-1], whole.splitlines()[-1])

    def test_a_model_of_ones_own_takes_a_folder(self):
        for arguments in ([], ["--help"]):
            done = launch(1, *arguments, name="own-model")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("usage: own-model FOLDER_FOR_CHECKPOINTS", done.stderr)


if __name__ == "__main__":
    shutil.which("h5dump") or exit("h5dump is missing: install hdf5-tools")
    main()
