"""Runs lockstep-plan as a user does and checks what it prints, writes and returns.

Usage: plan_test.py PROGRAM MAKE_CHECKPOINT [unittest's arguments]
"""

import csv
import io
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = os.path.abspath(sys.argv.pop(1))
MAKE_CHECKPOINT = os.path.abspath(sys.argv.pop(1))

# 171 samples, micro-batches of 4, cosine with two cycles after three warm-up steps.
EXAMPLE = ("--num-samples 171 --micro-batch-size 4 --learning-rate 1e-4 --lr-scheduler-type cosine-with-restarts "
           "--warmup-steps 3 --num-cycles 2").split()


def run(*arguments, folder=None):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, cwd=folder)


def example_rate(step, total=30, warmup=3, cycles=2, base=1e-4):
    """The public formula of cosine with hard restarts."""
    if step < warmup:
        return base * step / warmup
    progress = (step - warmup) / (total - warmup)
    return base * 0.5 * (1.0 + math.cos(math.pi * ((cycles * progress) % 1.0)))


class PlanTest(unittest.TestCase):
    def answer(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def table(self, *arguments):
        return list(csv.DictReader(io.StringIO(self.answer(*arguments, "--csv", "-"))))

    def rates(self, *arguments):
        return [row["lr"] for row in self.table(*arguments)]

    def plan(self, *arguments):
        return json.loads(self.answer(*arguments, "--json", "-"))

    def refusal(self, *arguments):
        """The one sentence of a refusal."""
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("lockstep-plan: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr


class Example(PlanTest):
    arguments = EXAMPLE + "--gradient-accumulation-steps 5 --ranks 2".split()

    def test_prints_the_whole_schedule(self):
        rows = self.table(*self.arguments, "--num-train-epochs", "6")
        self.assertEqual([int(row["step"]) for row in rows], list(range(1, 31)))
        self.assertEqual([int(row["epoch"]) for row in rows], [step // 5 for step in range(30)])
        self.assertEqual([int(row["samples"]) for row in rows], [40, 40, 40, 40, 11] * 6)
        consumed = [171 * (step // 5) + min(171, 40 * (step % 5 + 1)) for step in range(30)]
        self.assertEqual([int(row["consumed_samples"]) for row in rows], consumed)
        for step, row in enumerate(rows):
            self.assertTrue(math.isclose(float(row["lr"]), example_rate(step), rel_tol=1e-12, abs_tol=1e-19), row)

    def test_thirty_steps_are_six_epochs(self):
        by_epochs = self.table(*self.arguments, "--num-train-epochs", "6")
        self.assertEqual(self.table(*self.arguments, "--max-steps", "30"), by_epochs)
        self.assertEqual(self.table(*self.arguments, "--train-samples", "1026"), by_epochs)

    def test_says_the_lengths(self):
        plan = self.plan(*self.arguments, "--num-train-epochs", "6")
        expected = {"samples": 171, "global_batch_size": 40, "micro_batch_size": 4, "ranks": 2, "steps_per_epoch": 5,
                    "total_steps": 30, "warmup_steps": 3, "gradient_accumulation_steps": 5,
                    "consumed_samples_at_end": 1026}
        self.assertEqual({name: plan[name] for name in expected}, expected)


class Ranks(PlanTest):
    def test_do_not_change_the_rates_of_a_global_batch(self):
        for end in (["--num-train-epochs", "6"], ["--max-steps", "30"]):
            tables = [self.rates(*EXAMPLE, "--global-batch-size", "40", *end, "--ranks", ranks)
                      for ranks in ("1", "2", "3", "4", "8")]
            self.assertEqual(len(tables[0]), 30)
            for table in tables[1:]:
                self.assertEqual(table, tables[0])

    def test_are_compared_side_by_side(self):
        arguments = [*EXAMPLE, "--num-train-epochs", "6", "--ranks", "1,2,3,8"]
        derived = self.plan(*arguments, "--gradient-accumulation-steps", "5")
        self.assertEqual([plan["global_batch_size"] for plan in derived["plans"]], [20, 40, 60, 160])
        self.assertEqual([plan["total_steps"] for plan in derived["plans"]], [54, 30, 18, 12])
        text = self.answer(*arguments, "--gradient-accumulation-steps", "5")
        for heading in ("1 rank", "2 ranks", "3 ranks", "8 ranks"):
            self.assertIn(heading, text)
        fixed = self.plan(*arguments, "--global-batch-size", "40")
        self.assertEqual({plan["total_steps"] for plan in fixed["plans"]}, {30})
        # 10 micro-batches: 3 ranks run at most 4 each, 8 ranks at most 2.
        self.assertEqual([plan["utilization"] for plan in fixed["plans"]], [1.0, 1.0, 10 / 12, 10 / 16])

    def test_without_work_are_told(self):
        text = self.answer("--num-samples", "100", "--micro-batch-size", "8", "--global-batch-size", "16",
                           "--max-steps", "20", "--ranks", "4")
        self.assertRegex(text, r"warning: 2 of 4 ranks")


class Refusals(PlanTest):
    enough = "--num-samples 171 --micro-batch-size 4 --max-steps 30".split()

    def test_name_the_option_and_the_value(self):
        for arguments in ("--max-steps 1e6", "--max-steps -3", "--max-steps 99999999999999999999", "--max-steps 0x10",
                          "--learning-rate nan", "--learning-rate -1", "--lr-scheduler-type cosin",
                          "--num-train-epochs two", "--ranks 0", "--lr-milestones 3,x", "--seed 9223372036854775808"):
            option, value = arguments.split()
            message = self.refusal("--num-samples", "171", "--micro-batch-size", "4", option, value)
            self.assertIn(value.split(",")[-1], message)

    def test_propose_what_was_meant(self):
        self.assertIn("write 1000000", self.refusal("--num-samples", "1e6"))

    def test_need_data_or_steps(self):
        self.assertIn("--num-samples", self.refusal("--micro-batch-size", "4", "--num-train-epochs", "2"))

    def test_contradicting_batches_give_the_numbers(self):
        message = self.refusal(*self.enough, "--gradient-accumulation-steps", "5", "--ranks", "2",
                               "--global-batch-size", "64")
        for number in ("64", "40"):
            self.assertIn(number, message)

    def test_epoch_without_a_step(self):
        message = self.refusal("--num-samples", "40", "--global-batch-size", "128", "--drop-last",
                               "--num-train-epochs", "1")
        self.assertIn("40", message)
        self.assertIn("128", message)

    def test_warmup_of_the_whole_run(self):
        message = self.refusal(*self.enough, "--warmup-steps", "30")
        self.assertIn("30", message)

    def test_unknown_options(self):
        self.refusal(*self.enough, "--no-such-option")
        self.refusal(*self.enough, "stray")

    def test_two_answers_on_one_output(self):
        self.refusal(*self.enough, "--json", "-", "--csv", "-")

    def test_checkpoint_that_is_not_there(self):
        self.assertIn("no-such-file.h5", self.refusal("--from", "no-such-file.h5"))

    def test_output_that_cannot_be_written(self):
        done = run(*self.enough, "--csv", "/no-such-folder/plan.csv")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no-such-folder/plan.csv", done.stderr)


class Outputs(PlanTest):
    arguments = EXAMPLE + "--gradient-accumulation-steps 5 --num-train-epochs 6".split()

    def test_help_is_complete_and_grouped(self):
        text = self.answer("--help")
        for option in ("--num-samples", "--train-data", "--ranks", "--from", "--json", "--csv", "--plot",
                       "--global-batch-size", "--lr-scheduler-type", "--on-rank-change", "--drop-last",
                       "--plateau-patience", "--config"):
            self.assertIn(option, text)
        for group in ("Batch:", "Learning rate:", "Resuming:", "Output ("):
            self.assertIn(group, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 118)

    def test_unused_options_are_told(self):
        arguments = "--num-samples 100 --max-steps 9 --lr-scheduler-type linear".split()
        text = self.answer(*arguments, "--num-cycles", "2")
        self.assertIn("warning: --num-cycles is not used", text)
        self.assertNotIn("is not used", self.answer(*arguments))

    def test_names_take_underscores_and_capitals(self):
        hyphens = self.rates(*self.arguments)
        other = [word.replace("cosine-with-restarts", "Cosine_With_Restarts") for word in self.arguments]
        self.assertEqual(self.rates(*other), hyphens)

    def test_configuration_file_gives_options(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write('num-samples = 171\nmicro-batch-size = 4\ngradient-accumulation-steps = 5\n'
                           'num-train-epochs = 6\nlearning-rate = 1e-4\nwarmup-steps = 3\nnum-cycles = 2\n'
                           'lr-scheduler-type = "cosine_with_restarts"\nmodel = "cnn"\n')
            self.assertEqual(self.rates("--config", path), self.rates(*self.arguments))
            self.assertEqual(len(self.rates("--config", path, "--max-steps", "7")), 7)
            self.assertNotIn("warning", self.answer("--config", path))

    def test_a_name_in_the_configuration_file_that_is_nearly_an_option_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write('num-samples = 171\nmax-step = 7\nsave-steps = 5\nwidth-of-my-model = 3\n')
            warnings = [line for line in self.answer("--config", path).splitlines() if line.startswith("warning:")]
            self.assertEqual(warnings, [f"warning: 'max-step' in {path} is not used: did you mean max-steps?"])

    def test_files_hold_what_standard_output_gets(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(*self.arguments, "--json", "plan.json", "--csv", "plan.csv", "--plot", "plan.svg", folder=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("total steps", done.stdout)
            with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file), self.plan(*self.arguments))
            with open(os.path.join(folder, "plan.csv"), encoding="utf-8") as file:
                self.assertEqual(list(csv.DictReader(file)), self.table(*self.arguments))
            self.check_picture(os.path.join(folder, "plan.svg"), num_curves=1)

    def test_picture_of_rank_counts_has_a_curve_for_each_schedule(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.svg")
            self.answer(*self.arguments, "--ranks", "1,2,8", "--plot", path)
            self.check_picture(path, num_curves=3)
            self.answer(*EXAMPLE, "--num-train-epochs", "6", "--global-batch-size", "40", "--ranks", "1,2,8",
                        "--plot", path)
            self.check_picture(path, num_curves=1)

    def check_picture(self, path, num_curves):
        root = xml.etree.ElementTree.parse(path).getroot()
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, name + "svg")
        curves = root.findall(name + "polyline")
        self.assertEqual(len(curves), num_curves)
        width, height = (float(root.get(side)) for side in ("width", "height"))
        for curve in curves:
            points = [tuple(map(float, point.split(","))) for point in curve.get("points").split()]
            self.assertEqual(points, sorted(points, key=lambda point: point[0]))
            self.assertTrue(all(0 <= x <= width and 0 <= y <= height for x, y in points))
        words = " ".join(text.text for text in root.findall(name + "text"))
        self.assertIn("learning rate", words)


class Size(PlanTest):
    huge = ("--num-samples 1000000000000 --global-batch-size 1000000 --micro-batch-size 1000 --max-steps 10000000 "
            "--warmup-ratio 0.01 --lr-scheduler-type cosine").split()

    def seconds(self, *arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.answer(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def test_of_the_run_costs_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            outputs = ["--ranks", "1,64,1024", "--json", os.path.join(folder, "a.json"),
                       "--plot", os.path.join(folder, "a.svg")]
            small = min(self.seconds(*EXAMPLE, "--max-steps", "30", *outputs) for _ in range(5))
            huge = min(self.seconds(*self.huge, *outputs) for _ in range(5))
            # Ten million steps, one by one, cost far more than this; drawing a few thousand costs some milliseconds.
            self.assertLess(huge, small + 0.1)
            with open(os.path.join(folder, "a.svg"), encoding="utf-8") as file:
                self.assertLess(len(file.read()), 200_000)

    def test_of_the_table_is_every_step(self):
        arguments = [*self.huge, "--max-steps", "300000"]
        arguments.remove("10000000")
        arguments.remove("--max-steps")
        lines = self.answer(*arguments, "--csv", "-").splitlines()
        self.assertEqual(len(lines), 300_001)
        self.assertTrue(lines[-1].startswith("300000,0,300000000000,"), lines[-1])


class Resume(PlanTest):
    run_options = EXAMPLE + "--gradient-accumulation-steps 5 --num-train-epochs 6".split()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.checkpoint = cls.made(cls.run_options, ranks=2, steps=12)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def made(cls, options, ranks, steps):
        folder = tempfile.mkdtemp(dir=cls.folder.name)
        done = subprocess.run([MAKE_CHECKPOINT, *options, "--ranks", str(ranks), "--steps", str(steps), "--folder", folder],
                              capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def unbroken(self):
        return self.rates(*self.run_options, "--ranks", "2")

    def test_keeps_the_rest_of_the_schedule_on_other_ranks(self):
        for ranks in ("1", "3", "4", "8"):
            rows = self.table("--from", self.checkpoint, "--ranks", ranks)
            self.assertEqual([row["lr"] for row in rows], self.unbroken()[12:])
            self.assertEqual([int(row["step"]) for row in rows], list(range(13, 31)))

    def test_may_repeat_the_command_line(self):
        rates = self.rates("--from", self.checkpoint, *self.run_options, "--ranks", "3")
        self.assertEqual(rates, self.unbroken()[12:])

    def test_shows_old_and_new(self):
        plan = self.plan("--from", self.checkpoint, "--ranks", "3", "--on-rank-change", "keep-rank-batch")
        old = {"ranks": 2, "samples": 171, "global_batch_size": 40, "steps_per_epoch": 5, "total_steps": 30,
               "warmup_steps": 3, "steps_left": 18}
        new = {"ranks": 3, "samples": 171, "global_batch_size": 60, "steps_per_epoch": 3, "total_steps": 23,
               "warmup_steps": 3, "steps_left": 11}
        self.assertEqual({name: plan["old"][name] for name in old}, old)
        self.assertEqual({name: plan["new"][name] for name in new}, new)
        changes = {change["name"]: (change["old"], change["new"]) for change in plan["changes"]}
        self.assertEqual(changes["global_batch_size"], ("40", "60"))
        self.assertEqual(changes["steps_left"], ("18", "11"))
        text = self.answer("--from", self.checkpoint, "--ranks", "3", "--on-rank-change", "keep-rank-batch")
        self.assertRegex(text, r"global_batch_size +40 +60\n")

    def test_moves_faster_along_the_schedule_with_a_larger_batch(self):
        rows = self.table("--from", self.checkpoint, "--ranks", "3", "--on-rank-change", "keep_rank_batch")
        self.assertEqual(len(rows), 11)
        for n, row in enumerate(rows):
            position = 12 + n * 18 / 11
            self.assertTrue(math.isclose(float(row["position"]), position, rel_tol=1e-15), row)
            self.assertTrue(math.isclose(float(row["lr"]), example_rate(position), rel_tol=1e-9), row)
        self.assertEqual(rows[-1]["consumed_samples"], "1026")

    def test_file_tells_its_number_of_samples(self):
        # A checkpoint's weights are a data set like any other: two rows.
        plan = self.plan("--train-data", self.checkpoint, "--inputs-name", "weights/layer.weight",
                         "--global-batch-size", "1", "--num-train-epochs", "3")
        self.assertEqual((plan["samples"], plan["total_steps"]), (2, 6))
        self.assertIn("images", self.refusal("--train-data", self.checkpoint, "--max-steps", "3"))

    def test_takes_the_newest_of_a_folder_and_leaves_it_as_it_is(self):
        folder = os.path.dirname(self.checkpoint)
        before = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)}
        with open(self.checkpoint, "rb") as file:
            content = file.read()
        self.assertEqual(self.plan("--from", folder)["old"]["steps_taken"], 12)
        after = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)}
        self.assertEqual(after, before)
        with open(self.checkpoint, "rb") as file:
            self.assertEqual(file.read(), content)

    def test_refuses_another_schedule_unless_it_is_asked_for(self):
        message = self.refusal("--from", self.checkpoint, "--max-steps", "60")
        self.assertIn("--num-train-epochs 6", message)
        self.assertIn("60", message)
        longer = self.plan("--from", self.checkpoint, "--max-steps", "60", "--schedule-from", "command-line")
        self.assertEqual(longer["new"]["total_steps"], 60)
        self.assertIn("1e-05", self.refusal("--from", self.checkpoint, "--learning-rate", "1e-5"))

    def test_refuses_what_is_fixed(self):
        self.assertIn("7", self.refusal("--from", self.checkpoint, "--seed", "7"))
        message = self.refusal("--from", self.checkpoint, "--num-samples", "180")
        for number in ("171", "180"):
            self.assertIn(number, message)

    def test_warm_up_in_another_unit_replaces_the_stored_one(self):
        message = self.refusal("--from", self.checkpoint, "--warmup-ratio", "0.2")
        self.assertIn("0.2", message)

    def test_of_a_finished_run_says_so(self):
        finished = self.made(self.run_options, ranks=2, steps=30)
        self.assertIn("the run is finished", self.answer("--from", finished, "--ranks", "3"))
        self.assertEqual(self.plan("--from", finished, "--ranks", "3")["new"]["steps_left"], 0)
        self.assertEqual(self.table("--from", finished), [])
        with tempfile.TemporaryDirectory() as folder:
            self.answer("--from", finished, "--plot", os.path.join(folder, "plan.svg"))

    def test_says_when_standard_output_is_full(self):
        for arguments in (EXAMPLE, [*EXAMPLE, "--csv", "-"], [*EXAMPLE, "--json", "-"], ["--help"], ["--version"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, "not (be )?written")

    def test_refuses_a_damaged_checkpoint(self):
        damaged = os.path.join(self.folder.name, "damaged.h5")
        with open(self.checkpoint, "rb") as file:
            content = file.read()
        with open(damaged, "wb") as file:
            file.write(content[: len(content) // 2])
        done = run("--from", damaged)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("damaged.h5", done.stderr)


class SelfShardedData(PlanTest):
    def test_is_not_divided_a_second_time(self):
        plan = self.plan("--samples-of-rank", "100,96,104,90", "--micro-batch-size", "16", "--num-train-epochs", "3",
                         "--gradient-accumulation-steps", "1")
        self.assertEqual((plan["ranks"], plan["global_batch_size"], plan["samples"]), (4, 64, 390))
        self.assertEqual((plan["steps_per_epoch"], plan["total_steps"]), (7, 21))
        self.assertEqual(plan["micro_batches_of_rank_in_epoch"], [6, 7])

    def test_without_length_needs_steps(self):
        plan = self.plan("--global-batch-size", "4", "--micro-batch-size", "4", "--max-steps", "7")
        self.assertIsNone(plan["samples"])
        self.assertIsNone(plan["steps_per_epoch"])
        self.assertEqual(plan["total_steps"], 7)


if __name__ == "__main__":
    unittest.main(verbosity=2)
