"""What the tests of lockstep-train share: launching it on some ranks, and reading what it leaves.

A test program is called as PROGRAM_TEST.py FOLDER_OF_PROGRAMS MPIEXEC [unittest's arguments].
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = os.path.abspath(sys.argv.pop(1))
MPIEXEC = sys.argv.pop(1)

# 171 images in global batches of 40: five steps an epoch, thirty in all, the last of an epoch with 11 samples.
SMALL_RUN = ("--model mlp --hidden-sizes 16 --dropout 0.1 --learning-rate 1e-2 --lr-scheduler-type cosine-with-restarts "
             "--warmup-steps 3 --num-cycles 2 --micro-batch-size 4 --global-batch-size 40 --seed 5 --num-classes 10").split()


def program(name):
    return os.path.join(PROGRAMS, name)


def launch(ranks, *arguments, name="lockstep-train", timeout=120, env=None):
    """Runs a program on some ranks; one rank needs no launcher."""
    command = [program(name), *arguments]
    if ranks > 1:
        command = [MPIEXEC, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})


def metrics(folder):
    """The steps and the evaluations of a run, as dictionaries."""
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if "lr" in row], [row for row in rows if "lr" not in row]


def checkpoints(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".h5") and name.startswith("step-"))


class TrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        subprocess.run([program("import-fashion-mnist"), "--out", cls.folder, "--limit", "171"], check=True,
                       capture_output=True)
        cls.data = os.path.join(cls.folder, "train.h5")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def path(self, name):
        return os.path.join(self.folder, self.id().rsplit(".", 1)[-1] + "-" + name)

    def train(self, ranks, folder, *arguments, code=0, options=SMALL_RUN):
        """Trains the small run; returns what it printed."""
        done = launch(ranks, "--train-data", self.data, *options, "--checkpoint-dir", folder, *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def digest(self, output):
        found = re.search(r"digest\s+([0-9a-f]{32})", output)
        self.assertIsNotNone(found, output)
        return found.group(1)

    def assert_same_state(self, one, other):
        done = launch(1, "diff", one, other, name="lockstep-checkpoint")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


def main():
    unittest.main(verbosity=2)
