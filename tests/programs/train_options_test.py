"""Options of lockstep-train that need one another, and what a run keeps and tells of them."""

import json
import os
import re
import unittest

from train_support import SMALL_RUN, TrainTest, checkpoints, launch, main, metrics

STEPS = ["--max-steps", "4"]


class OptionsTest(TrainTest):
    def begin(self, *arguments, ranks=1, options=SMALL_RUN):
        return launch(ranks, "--train-data", self.data, *options, *STEPS, *arguments)

    def refused(self, *arguments, ranks=1):
        done = self.begin(*arguments, ranks=ranks)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def stored(self, folder):
        done = launch(1, "show", "--json", os.path.join(folder, checkpoints(folder)[-1]), name="lockstep-checkpoint")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["attributes"]["options"]

    def test_saving_needs_a_folder(self):
        for option in (["--save-steps", "1"], ["--save-interval-seconds", "5"], ["--save-at-epoch-end"],
                       ["--save-total-limit", "2"], ["--save-keep-every", "2"], ["--on-save-failure", "abort"],
                       ["--inject", "crash@save:data"], ["--async-save", "on"], ["--checkpoint-writer", "direct"],
                       ["--no-preflight"], ["--resume", "auto"], ["--resume", "/no/such.h5"],
                       ["--max-restarts-without-progress", "5"]):
            message = self.refused(*option)
            self.assertIn(option[0], message)
            self.assertIn("without --checkpoint-dir", message)
        message = self.refused("--save-steps", "1", "--save-total-limit", "2", ranks=2)
        self.assertIn("--save-steps, --save-total-limit have no effect", message)
        self.assertEqual(message.count("no effect"), 1, message)  # told once for all ranks

    def test_others_need_their_partners(self):
        for option, needed in ((["--allow-missing"], "--finetune-from"), (["--allow-unexpected"], "--finetune-from"),
                               (["--evaluation-steps", "2"], "--validation-data"),
                               (["--evaluation-batch-size", "8"], "--validation-data")):
            self.assertIn(f"{option[0]} has no effect without {needed}", self.refused(*option))

    def test_an_empty_value_is_no_value(self):
        for option in ("--checkpoint-dir", "--metrics-file", "--validation-data", "--finetune-from", "--resume"):
            self.assertIn(f"{option} is empty", self.refused(option, ""))

    def test_a_run_goes_on_or_starts_from_weights(self):
        message = self.refused("--finetune-from", "a.h5", "--resume", "b.h5", "--checkpoint-dir", self.path("run"))
        self.assertIn("--finetune-from and --resume FILE", message)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_a_flag_that_a_configuration_file_turns_off_is_not_given(self):
        file = self.path("run.ini")
        with open(file, "w") as out:
            out.write("save-at-epoch-end=false\nallow-missing=false\nno-preflight=false\n")
        done = self.begin("--config", file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_options_of_another_choice_are_noted(self):
        cases = ((["--init-scale", "8", "--growth-interval", "5", "--static-scale", "--on-overflow", "skip"],
                  "the precision is fp32 (it belongs to fp16)"),
                 (["--precision", "bf16", "--hysteresis", "2"], "the precision is bf16 (it belongs to fp16)"),
                 (["--precision", "fp16", "--on-nonfinite", "skip"], "the precision is fp16 (it belongs to fp32, bf16)"),
                 (["--max-nonfinite", "2"], "--on-nonfinite is error"),
                 (["--precision", "fp16", "--static-scale", "--init-scale", "1024", "--growth-factor", "3"], "the loss scale is static"),
                 (["--optimizer", "sgd", "--adam-beta1", "0.5", "--adam-epsilon", "1e-6"], "the optimizer is sgd"),
                 (["--momentum", "0.5", "--nesterov"], "the optimizer is adamw (it belongs to sgd)"),
                 (["--model", "cnn"], "--hidden-sizes is not used: the model is cnn"))
        for options, words in cases:
            done = self.begin(*options, options=[word for word in SMALL_RUN if word not in ("--model", "mlp")])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            notes = [line for line in done.stdout.splitlines() if line.startswith("note ")]
            self.assertTrue(any(words in line for line in notes), done.stdout)
        done = self.begin("--precision", "fp16", "--init-scale", "1024")
        self.assertNotIn("is not used", done.stdout)

    def test_a_beta_is_below_one(self):
        for option in ("--adam-beta1", "--adam-beta2"):
            self.assertIn("from 0 to below 1", self.refused(option, "1"))
        self.assertEqual(self.begin("--adam-beta1", "0.9999", "--adam-beta2", "0").returncode, 0)

    def test_the_checkpoint_holds_defaults_too(self):
        folder = self.path("run")
        done = launch(1, "--train-data", self.data, *STEPS, "--checkpoint-dir", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        options = self.stored(folder)
        for name, value in (("model", "mlp"), ("hidden-sizes", [256, 256]), ("dropout", 0), ("loss", "cross-entropy"),
                            ("num-classes", 10), ("max-grad-norm", 0), ("optimizer", "adamw"), ("weight-decay", 0.01),
                            ("adam-beta1", 0.9), ("precision", "fp32"), ("seed", 0), ("learning-rate", 1e-3),
                            ("lr-scheduler-type", "linear"), ("max-steps", 4), ("train-data", self.data)):
            self.assertEqual(options[name], value, name)
        for name in ("momentum", "init-scale", "checkpoint-dir", "num-threads", "num-train-epochs"):
            self.assertNotIn(name, options)

    def test_what_changes_on_a_resume_is_told(self):
        folder = self.path("run")
        self.train(1, folder, *STEPS, "--stop-after-steps", "1", code=85)
        output = self.train(2, folder, *STEPS, "--stop-after-steps", "1", code=85)
        self.assertIn("ranks: 1 -> 2", output)
        self.assertNotRegex(output, r"resume +(train_data|model|dropout|hidden_sizes|weight_decay|adam|max_grad|on_)")
        options = [*SMALL_RUN]
        options[options.index("--dropout") + 1] = "0.2"
        output = self.train(1, folder, *STEPS, "--weight-decay", "0.5", "--adam-beta1", "0.8", "--adam-epsilon", "1e-6",
                            "--max-grad-norm", "2", "--stop-after-steps", "1", code=85, options=options)
        for line in ("weight_decay: 0.01 -> 0.5", "adam_beta1: 0.9 -> 0.8", "adam_epsilon: 1e-08 -> 1e-06",
                     "dropout: 0.1 -> 0.2", "max_grad_norm: 0 -> 2"):
            self.assertRegex(output, r"(?m)^resume +" + re.escape(line) + "$")

    def test_a_refused_finetune_names_what_helps(self):
        folder = self.path("run")
        self.train(1, folder, *STEPS)
        file = os.path.join(folder, checkpoints(folder)[-1])
        for model, words in (("8,8", "cannot be passed over"), ("16,10", "--allow-missing")):
            options = [*SMALL_RUN]
            options[options.index("--hidden-sizes") + 1] = model
            done = self.begin("--finetune-from", file, options=options)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(words, done.stderr)
            self.assertNotIn("--finetune-from", done.stderr)


class MetricsTest(TrainTest):
    def begin(self, file, *arguments, ranks=1):
        return launch(ranks, "--train-data", self.data, *SMALL_RUN, *STEPS, "--metrics-file", file, *arguments)

    def lines(self, file):
        with open(file) as lines:
            return [json.loads(line) for line in lines]

    def test_another_file_is_refused(self):
        file = self.path("notes.txt")
        with open(file, "w") as out:
            out.write("do not lose me\n")
        for name in (file, self.data):
            with open(name, "rb") as content:
                before = content.read()
            done = self.begin(name, ranks=2)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("is no metrics file", done.stderr)
            with open(name, "rb") as content:
                self.assertEqual(content.read(), before)

    def test_a_second_run_does_not_erase_the_first_ones(self):
        file = self.path("metrics.jsonl")
        self.assertEqual(self.begin(file).returncode, 0)
        before = self.lines(file)
        self.assertEqual([row["step"] for row in before], [1, 2, 3, 4])
        for arguments in ([], ["--checkpoint-dir", self.path("run")]):
            done = self.begin(file, *arguments)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("another run", done.stderr)
            self.assertEqual(self.lines(file), before)

    def test_a_run_goes_on_in_its_own_file_elsewhere(self):
        file, folder = self.path("metrics.jsonl"), self.path("run")
        run = ["--checkpoint-dir", folder, "--save-steps", "3"]
        # Killed before its first save, then after one.
        for drill, left in (("crash@save:data,step=3", [1, 2, 3]), ("crash@save:data,step=4", [1, 2, 3, 4])):
            self.assertNotIn(self.begin(file, *run, "--inject", drill, "--async-save", "off").returncode, (0, 2))
            self.assertEqual([row["step"] for row in self.lines(file)], left)
        done = self.begin(file, *run, ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["step"] for row in self.lines(file)], [1, 2, 3, 4])
        self.assertEqual({row["run"] for row in self.lines(file)}, {os.path.realpath(folder)})
        other = self.begin(file, "--checkpoint-dir", self.path("other"))
        self.assertEqual(other.returncode, 2, other.stdout + other.stderr)
        self.assertEqual(len(self.lines(file)), 4)

    def test_a_requeue_before_the_first_save_starts_its_file_again(self):
        folder = self.path("run")
        run = ["--train-data", self.data, *SMALL_RUN, *STEPS, "--checkpoint-dir", folder]
        crashed = launch(2, *run, "--inject", "crash@save:data")
        self.assertNotIn(crashed.returncode, (0, 2))
        self.assertEqual(len(metrics(folder)[0]), 4)
        done = launch(2, *run)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["step"] for row in metrics(folder)[0]], [1, 2, 3, 4])


if __name__ == "__main__":
    main()
