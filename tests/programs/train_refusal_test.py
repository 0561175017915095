"""What lockstep-train refuses: a sentence, an exit code, no hang, and no damaged checkpoint."""

import ctypes.util
import glob
import hashlib
import os
import unittest

from train_support import SMALL_RUN, TrainTest, checkpoints, launch, main

STEPS = ["--max-steps", "4"]


class RefusalTest(TrainTest):
    def trained(self):
        """A run of four steps, trained once, stopped after two."""
        folder = os.path.join(self.folder, "trained")
        if not os.path.exists(folder):
            self.train(1, folder, *STEPS, "--stop-after-steps", "2", code=85)
        return folder

    def refused(self, *arguments, code=2, ranks=2):
        done = launch(ranks, *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def changed(self, *options, replace=(), code=2, model=SMALL_RUN):
        """Resumes the trained run with other options; its checkpoints must stay as they are."""
        folder = self.trained()
        before = {name: hashlib.sha256(open(name, "rb").read()).hexdigest() for name in glob.glob(folder + "/*.h5")}
        base = [*model, *STEPS]
        for name, value in replace:
            base[base.index(name) + 1] = value
        message = self.refused("--train-data", self.data, *base, *options, "--checkpoint-dir", folder, code=code)
        after = {name: hashlib.sha256(open(name, "rb").read()).hexdigest() for name in glob.glob(folder + "/*.h5")}
        self.assertEqual(before, after)
        return message

    def test_missing_data(self):
        message = self.refused("--train-data", "/no/such/file.h5", *SMALL_RUN, *STEPS)
        self.assertIn("/no/such/file.h5", message)

    def test_data_that_is_not_hdf5(self):
        self.assertIn(__file__, self.refused("--train-data", os.path.abspath(__file__), *SMALL_RUN, *STEPS))

    def test_a_wrong_dataset_name_names_what_the_file_holds(self):
        message = self.refused("--train-data", self.data, *SMALL_RUN, *STEPS, "--inputs-name", "pictures")
        for word in ("pictures", "images", "labels"):
            self.assertIn(word, message)

    def test_a_folder_that_cannot_be_written(self):
        message = self.refused("--train-data", self.data, *SMALL_RUN, *STEPS, "--checkpoint-dir", self.data + "/run",
                               code=1)
        self.assertIn(self.data + "/run", message)

    def test_a_checkpoint_of_another_model(self):
        message = self.changed(replace=[("--hidden-sizes", "24")])
        for part in ("layer0.weight", "[16, 784] stored, ", "[24, 784] here", "layer1.weight"):
            self.assertIn(part, message)
        cnn = ["cnn" if word == "mlp" else word for word in SMALL_RUN]
        message = self.changed(model=cnn)
        self.assertIn("conv1.weight", message)
        self.assertIn("layer0.weight", message)

    def test_options_that_contradict_the_checkpoint(self):
        for replace, words in (([("--seed", "6")], ("5", "6")),
                               ([("--learning-rate", "2e-2")], ("0.01", "0.02")),
                               ([("--lr-scheduler-type", "linear")], ("cosine-with-restarts", "linear")),
                               ([("--warmup-steps", "2")], ("3", "2")),
                               ([("--max-steps", "9")], ("4", "9"))):
            message = self.changed(replace=replace)
            for word in words:
                self.assertIn(word, message)
        self.assertIn("sgd", self.changed("--optimizer", "sgd"))
        self.assertIn("drop", self.changed("--drop-last"))

    def test_a_stored_schedule_may_win(self):
        folder = self.path("run")
        self.train(1, folder, *STEPS, "--stop-after-steps", "2", code=85)
        options = ["2e-2" if word == "1e-2" else word for word in SMALL_RUN]
        output = self.train(2, folder, *STEPS, "--schedule-from", "checkpoint", options=options)
        self.assertIn("finished", output)

    def test_a_folder_with_checkpoints_is_not_begun_anew(self):
        message = self.changed("--resume", "never")
        self.assertIn("--resume never", message)

    def test_a_damaged_newest_checkpoint_gives_way_to_the_older_one(self):
        folder = self.path("run")
        self.train(1, folder, "--max-steps", "4", "--save-steps", "1")
        names = checkpoints(folder)
        self.assertEqual(len(names), 4)
        for name in names[1:]:
            with open(os.path.join(folder, name), "r+b") as damaged:
                damaged.seek(os.path.getsize(damaged.name) // 2)
                byte = damaged.read(1)
                damaged.seek(-1, os.SEEK_CUR)
                damaged.write(bytes([byte[0] ^ 1]))
        done = launch(3, "--train-data", self.data, *SMALL_RUN, "--max-steps", "4", "--checkpoint-dir", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(names[3], done.stdout + done.stderr)
        self.assertIn("after step 1", done.stdout)

    def test_no_whole_checkpoint_is_no_new_start(self):
        folder = self.path("run")
        self.train(1, folder, "--max-steps", "4")
        with open(os.path.join(folder, checkpoints(folder)[0]), "r+b") as damaged:
            damaged.truncate(5000)
        done = launch(2, "--train-data", self.data, *SMALL_RUN, "--max-steps", "4", "--checkpoint-dir", folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(checkpoints(folder)[0], done.stderr)

    def test_unknown_values_name_the_known_ones(self):
        for option, value, word in (("--model", "vgg", "cnn"), ("--optimizer", "lion", "adamw"),
                                    ("--precision", "fp8", "bf16"), ("--loss", "hinge", "mse"),
                                    ("--inject", "crash@nowhere", "save"), ("--communicator", "tcp", "mpi")):
            message = self.refused("--train-data", self.data, *STEPS, option, value, ranks=1)
            self.assertIn(word, message, option)

    def test_a_misspelt_option_is_told_once_and_the_right_one_proposed(self):
        done = launch(3, "--train-data", self.data, "--num-train-epoch", "1")
        self.assertEqual(done.returncode, 2, done.stderr)
        sentence = "lockstep-train: there is no option --num-train-epoch: did you mean --num-train-epochs?"
        self.assertEqual(done.stderr.count(sentence), 1, done.stderr)
        self.assertIn("there is no option --tensorboard (see lockstep-train --help)",
                      launch(1, "--train-data", self.data, "--tensorboard").stderr)

    def test_the_last_of_an_option_given_twice_counts(self):
        done = launch(1, "--train-data", self.data, *SMALL_RUN, "--max-steps", "9", "--max-steps", "5")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("after step 5", done.stdout)

    def test_a_run_that_saves_nothing_says_so_and_is_not_to_be_started_again(self):
        done = launch(2, "--train-data", self.data, *SMALL_RUN, "--max-steps", "5", "--stop-after-steps", "1")
        self.assertEqual(done.returncode, 86, done.stderr)
        self.assertIn("nothing will be saved: there is no --checkpoint-dir", done.stdout)

    def test_a_plateau_needs_evaluations(self):
        message = self.refused("--train-data", self.data, *STEPS, "--lr-scheduler-type", "reduce-on-plateau", ranks=1)
        self.assertIn("give --validation-data", message)

    def test_options_of_devices_on_the_cpu(self):
        message = self.refused("--train-data", self.data, *STEPS, "--deterministic", "--reduction", "fast", ranks=1)
        self.assertIn("--deterministic and --reduction fast contradict each other", message)
        done = launch(1, "--train-data", self.data, *SMALL_RUN, "--max-steps", "5", "--device", "cpu", "--reduction",
                      "fast", "--bucket-cap-mb", "5", "--cuda-graph", "--communication-timeout", "9")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--reduction fast has no effect on the CPU", done.stdout)
        for option in ("--bucket-cap-mb", "--cuda-graph", "--communication-timeout"):
            self.assertIn(option + " is not used: the run is on the CPU", done.stdout)

    def test_version_and_help_are_told_once(self):
        done = launch(2, "--version")
        self.assertEqual((done.returncode, done.stdout.count("lockstep-train ")), (0, 1), done.stdout)

    @unittest.skipIf(ctypes.util.find_library("cuda"), "this machine has a driver of NVIDIA's devices")
    def test_a_device_where_there_is_none(self):
        message = self.refused("--train-data", self.data, *SMALL_RUN, *STEPS, "--device", "cuda")
        self.assertIn("no device can be used (there is no NVIDIA driver on this machine", message)
        self.assertIn("--device cpu", message)

    def test_help_needs_no_launcher(self):
        done = launch(1, "--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--train-data", "--save-steps", "--on-rank-change", "85"):
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    main()
