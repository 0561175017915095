"""Runs that are stopped and go on, on other ranks and under both policies."""

import csv
import io
import os
import re
import signal
import subprocess

from train_support import MPIEXEC, SMALL_RUN, TrainTest, checkpoints, launch, main, metrics, program

SIX_EPOCHS = ["--num-train-epochs", "6"]


def newest(folder):
    return os.path.join(folder, checkpoints(folder)[-1])


class ResumeTest(TrainTest):
    def unbroken(self):
        """The run that never stopped, on one rank: trained once."""
        folder = os.path.join(self.folder, "unbroken")
        if not os.path.exists(folder):
            type(self).unbroken_digest = self.digest(self.train(1, folder, *SIX_EPOCHS))
        return folder

    def coverage(self, folder):
        done = launch(1, "verify", "--coverage", newest(folder), name="lockstep-checkpoint")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def assert_same_steps(self, folder, other, keys=("step", "epoch", "consumed_samples", "lr", "loss", "grad_norm")):
        steps, expected = metrics(folder)[0], metrics(other)[0]
        self.assertEqual([[row[key] for key in keys] for row in steps], [[row[key] for key in keys] for row in expected])

    def test_four_launches_on_other_ranks_are_one_run(self):
        unbroken = self.unbroken()
        folder = self.path("run")
        for ranks in (2, 3, 1):
            self.train(ranks, folder, *SIX_EPOCHS, "--stop-after-steps", "7", code=85)
        digest = self.digest(self.train(4, folder, *SIX_EPOCHS))
        self.assertEqual(digest, self.unbroken_digest)
        self.assert_same_state(newest(unbroken), newest(folder))
        self.assert_same_steps(folder, unbroken)
        self.coverage(folder)

    def test_the_rates_are_those_of_the_plan(self):
        plan = launch(1, "--num-samples", "171", *SMALL_RUN[SMALL_RUN.index("--learning-rate"):SMALL_RUN.index("--num-classes")],
                      *SIX_EPOCHS, "--csv", "-", name="lockstep-plan")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        rows = list(csv.DictReader(io.StringIO(plan.stdout)))
        planned = [float(row["lr"]) for row in rows]
        self.assertEqual(len(planned), 30)
        steps = metrics(self.unbroken())[0]
        self.assertEqual([row["lr"] for row in steps], planned)
        for key in ("step", "epoch", "consumed_samples"):
            self.assertEqual([row[key] for row in steps], [int(row[key]) for row in rows], key)
        by_steps = self.path("steps")
        self.train(3, by_steps, "--max-steps", "30")
        self.assertEqual([row["lr"] for row in metrics(by_steps)[0]], planned)

    def test_a_rank_keeps_its_batch_and_the_schedule_has_no_jump(self):
        folder = self.path("run")
        options = ("--model mlp --hidden-sizes 16 --learning-rate 1e-2 --lr-scheduler-type linear --micro-batch-size 4 "
                   "--gradient-accumulation-steps 5 --num-train-epochs 6 --on-rank-change keep-rank-batch --seed 5").split()
        self.train(2, folder, "--stop-after-steps", "12", code=85, options=options)
        output = self.train(3, folder, "--stop-after-steps", "4", code=85, options=options)
        self.assertRegex(output, r"global_batch_size: 40 -> 60")
        self.train(1, folder, "--stop-after-steps", "3", code=85, options=options)
        self.train(4, folder, options=options)
        steps = metrics(folder)[0]
        self.assertEqual([row["step"] for row in steps], list(range(1, len(steps) + 1)))
        self.assertEqual(steps[-1]["consumed_samples"], 6 * 171)
        # Two ranks: T0 = 30. Three ranks after step 12: 11 steps left, so each moves the position by 18/11.
        expected = [1e-2 * (1 - step / 30) for step in range(12)]
        expected += [1e-2 * (1 - (12 + n * 18 / 11) / 30) for n in range(4)]
        for row, rate in zip(steps, expected):
            self.assertAlmostEqual(row["lr"], rate, delta=1e-14)
        rates = [row["lr"] for row in steps]
        self.assertTrue(all(later < earlier for earlier, later in zip(rates, rates[1:])), rates)
        drops = [earlier - later for earlier, later in zip(rates, rates[1:])] + [rates[-1]]
        self.assertLess(max(drops) / min(drops), 4.5)  # the step sizes differ as the global batches do, 20 to 80
        self.coverage(folder)

    def test_a_finished_run_is_left_alone(self):
        folder = self.path("run")
        self.train(1, folder, "--max-steps", "4")
        before = os.stat(newest(folder)).st_mtime_ns
        output = self.train(2, folder, "--max-steps", "4")
        self.assertIn("nothing is done", output)
        self.assertEqual(os.stat(newest(folder)).st_mtime_ns, before)
        self.assertEqual(len(metrics(folder)[0]), 4)

    def test_a_killed_rank_costs_only_the_steps_since_the_save(self):
        unbroken = self.unbroken()
        folder = self.path("run")
        arguments = ["--train-data", self.data, *SMALL_RUN, *SIX_EPOCHS, "--checkpoint-dir", folder, "--save-steps", "4"]
        crashed = launch(2, *arguments, "--inject", "crash@save:data,rank=1,step=12")
        self.assertNotEqual(crashed.returncode, 0)
        self.assertEqual(checkpoints(folder)[-1][-5:], "08.h5")
        digest = self.digest(self.train(3, folder, *SIX_EPOCHS, "--save-steps", "4"))
        self.assertEqual(digest, self.unbroken_digest)
        self.assert_same_steps(folder, unbroken)

    def test_a_named_checkpoint_is_where_a_run_starts_and_a_requeue_goes_on(self):
        first = self.path("first")
        self.train(2, first, "--max-steps", "8", "--save-steps", "2")
        second = self.path("second")
        command = ["--max-steps", "8", "--save-steps", "1", "--resume", os.path.join(first, "step-00000004.h5"),
                   "--save-total-limit", "2"]
        for steps in (5, 6, 7):
            self.train(2, second, *command, "--stop-after-steps", "1", code=85)
            self.assertEqual(checkpoints(second)[-1], f"step-{steps:08}.h5")
        os.remove(os.path.join(first, "step-00000004.h5"))  # as retention may
        self.assertIn("gone on from", self.train(3, second, *command))
        self.assert_same_state(newest(first), newest(second))

        # Back to an older one: what came after it would be what a requeue finds.
        back = ["--train-data", self.data, *SMALL_RUN, "--max-steps", "8", "--checkpoint-dir", first, "--resume",
                os.path.join(first, "step-00000002.h5")]
        refused = launch(2, *back)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("holds 'step-00000008.h5', which does not come from", refused.stderr)
        for name in checkpoints(first)[1:]:
            os.remove(os.path.join(first, name))
        self.assertEqual(launch(2, *back).returncode, 0)
        self.assert_same_state(newest(first), newest(second))

        folder = launch(1, *back[:-1], first)
        self.assertEqual(folder.returncode, 2, folder.stdout)
        self.assertIn("is a folder: name one of the checkpoints in it", folder.stderr)

    def test_a_run_whose_last_save_fails_is_not_finished(self):
        for when, options in (("end", []), ("stop", ["--stop-after-steps", "6"])):
            folder = self.path(when)
            arguments = ["--train-data", self.data, *SMALL_RUN, "--max-steps", "8", "--checkpoint-dir", folder,
                         "--save-steps", "4", *options]
            step = options[-1] if options else "8"
            failed = launch(2, *arguments, "--inject", f"fail@save:written,rank=1,step={step}")
            self.assertEqual(failed.returncode, 1, failed.stdout + failed.stderr)
            self.assertIn(f"the run ends with step {step}, but its last checkpoint could not be saved", failed.stderr)
            self.assertEqual(checkpoints(folder), ["step-00000004.h5"])
            self.assertFalse(os.path.exists(os.path.join(folder, "DONE")))
            self.assertIn("after step 4", self.train(2, folder, "--max-steps", "8"))
            self.assertTrue(os.path.exists(os.path.join(folder, "DONE")))

    def test_a_signal_to_one_rank_stops_all_after_one_step(self):
        unbroken = self.unbroken()
        folder = self.path("run")
        command = [MPIEXEC, "-n", "2", "--oversubscribe", "--bind-to", "none", "--tag-output", "sh", "-c",
                   'echo "pid $OMPI_COMM_WORLD_RANK $$"; exec "$@"', "sh", program("lockstep-train"), "--train-data",
                   self.data, *SMALL_RUN, *SIX_EPOCHS, "--checkpoint-dir", folder, "--evaluation-steps", "1",
                   "--validation-data", self.data, "--evaluation-batch-size", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            pids, lines = {}, []
            for line in run.stdout:
                lines.append(line)
                found = re.search(r"pid (\d+) (\d+)$", line.strip())
                if found:
                    pids[int(found.group(1))] = int(found.group(2))
                if "evaluation after step 2" in line:
                    os.kill(pids[1], signal.SIGUSR1)
                    os.kill(pids[1], signal.SIGTERM)
            run.wait(timeout=60)
        output = "".join(lines)
        self.assertEqual(run.returncode, 85, output)
        self.assertIn("interrupted", output)
        self.assertEqual(len(checkpoints(folder)), 1, output)
        self.assertEqual(self.digest(self.train(1, folder, *SIX_EPOCHS)), self.unbroken_digest)
        self.assert_same_steps(folder, unbroken)

    def test_halt_stops_and_save_saves(self):
        folder = self.path("run")
        os.makedirs(folder)
        for name in ("HALT", "SAVE"):
            open(os.path.join(folder, name), "w").close()
        self.train(2, folder, *SIX_EPOCHS, code=85)
        self.assertFalse(os.path.exists(os.path.join(folder, "HALT")))
        self.train(1, folder, *SIX_EPOCHS)
        self.assertTrue(os.path.exists(os.path.join(folder, "DONE")))

    def test_an_overflow_is_computed_again_and_the_schedule_stays(self):
        unbroken = self.unbroken()
        fp16 = self.path("fp16")
        drill = ["--precision", "fp16", "--init-scale", "1024", "--inject", "overflow@3,7"]
        self.train(2, fp16, *SIX_EPOCHS, *drill, "--stop-after-steps", "6", code=85)
        self.train(3, fp16, *SIX_EPOCHS, *drill)
        steps = metrics(fp16)[0]
        self.assert_same_steps(fp16, unbroken, keys=("step", "consumed_samples", "lr"))
        self.assertEqual([row["step"] for row in steps if row["attempts"] == 2], [3, 7])
        self.assertEqual([row["loss_scale"] for row in steps[1:8]], [1024, 512, 512, 512, 512, 256, 256])
        self.coverage(fp16)
        alone = self.path("alone")
        self.train(1, alone, *SIX_EPOCHS, *drill)
        self.assert_same_state(newest(alone), newest(fp16))

        dropped = self.path("dropped")
        output = self.train(2, dropped, *SIX_EPOCHS, *drill, "--on-overflow", "skip")
        steps = metrics(dropped)[0]
        self.assertEqual([row["step"] for row in steps if not row["applied"]], [3, 7])
        applied = [row["lr"] for row in metrics(unbroken)[0]]
        expected, position = [], 0
        for step in range(30):
            expected.append(applied[position])
            position += step + 1 not in (3, 7)
        self.assertEqual([row["lr"] for row in steps], expected)
        self.assertIn("2 steps dropped", output)


if __name__ == "__main__":
    main()
