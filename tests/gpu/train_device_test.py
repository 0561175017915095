"""lockstep-train on devices: the same runs as on the CPU, handed from one to the other, killed, and gone on with.

TRAIN_DEVICE_TEST.py FOLDER_OF_PROGRAMS MPIEXEC DEVICE NUM_DEVICES [DATA] [unittest's arguments]. DEVICE is cuda, or
cpu, which tries the test itself. DATA is a file of import-fashion-mnist with 171 images; made when absent.
"""

import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs"))

DEVICE = sys.argv.pop(3)
NUM_DEVICES = int(sys.argv.pop(3))
DATA = os.path.abspath(sys.argv.pop(3)) if len(sys.argv) > 3 and sys.argv[3].endswith(".h5") else None

from train_support import SMALL_RUN, TrainTest, checkpoints, launch, main, metrics  # noqa: E402 (reads argv)

THREE_EPOCHS = [*SMALL_RUN, "--num-train-epochs", "3"]
EXACT = ["--device", DEVICE, "--deterministic"]
CNN = ["--model", "cnn", *THREE_EPOCHS[2:]]


def newest(folder):
    return os.path.join(folder, checkpoints(folder)[-1])


class DeviceTest(TrainTest):
    @classmethod
    def setUpClass(cls):
        if not DATA:
            super().setUpClass()
            return
        cls.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        cls.data = DATA

    def unbroken(self):
        """The deterministic run on one device that never stopped: trained once."""
        folder = os.path.join(self.folder, "unbroken")
        if not os.path.exists(folder):
            output = self.train(1, folder, *EXACT, options=THREE_EPOCHS)
            type(self).unbroken_digest = self.digest(output)
            if DEVICE == "cuda":
                self.assertRegex(output, r"lockstep .*CUDA with NCCL")
                self.assertRegex(output, r"device +one a rank, reduction exact, deterministic")
        return folder

    def assert_same_course(self, folder, other, keys=("step", "epoch", "consumed_samples", "lr")):
        steps, expected = metrics(folder)[0], metrics(other)[0]
        values = [[[row[key] for key in keys] for row in rows] for rows in (steps, expected)]
        self.assertEqual(*values)

    def verify(self, folder):
        done = launch(1, "verify", "--coverage", newest(folder), name="lockstep-checkpoint")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_run_goes_from_the_cpu_to_the_device_and_back(self):
        unbroken = self.unbroken()
        folder = self.path("run")
        self.train(2, folder, "--device", "cpu", "--stop-after-steps", "5", code=85, options=THREE_EPOCHS)
        device = "auto" if DEVICE == "cuda" else DEVICE
        output = self.train(1, folder, "--device", device, "--stop-after-steps", "6", code=85, options=THREE_EPOCHS)
        self.assertRegex(output, r"resumed .* after step 5")
        if DEVICE == "cuda":
            self.assertRegex(output, r"device +one a rank, reduction fast")
        output = self.train(2, folder, "--device", "cpu", options=THREE_EPOCHS)
        self.assertRegex(output, r"resumed .* after step 11")
        self.assert_same_course(folder, unbroken)
        for row, expected in zip(metrics(folder)[0], metrics(unbroken)[0]):
            self.assertAlmostEqual(row["loss"], expected["loss"], delta=0.3)  # dropout draws other numbers
        self.verify(folder)

    def test_a_killed_run_goes_on_to_the_last_bit(self):
        unbroken = self.unbroken()
        folder = self.path("run")
        crashed = launch(1, "--train-data", self.data, *THREE_EPOCHS, *EXACT, "--checkpoint-dir", folder,
                         "--save-steps", "4", "--inject", "crash@save:data,rank=0,step=12")
        self.assertNotEqual(crashed.returncode, 0)
        self.assertEqual(checkpoints(folder)[-1][-5:], "08.h5")
        digest = self.digest(self.train(1, folder, *EXACT, "--save-steps", "4", options=THREE_EPOCHS))
        self.assertEqual(digest, self.unbroken_digest)
        self.assert_same_course(folder, unbroken, ("step", "consumed_samples", "lr", "loss", "grad_norm"))

    def test_a_save_beside_the_run_holds_what_a_save_that_waits_holds(self):
        beside, waiting = self.path("beside"), self.path("waiting")
        for folder, when in ((beside, "on"), (waiting, "off")):
            digest = self.digest(self.train(1, folder, *EXACT, "--save-steps", "3", "--async-save", when, options=CNN))
        self.assertEqual(len(checkpoints(beside)), 5)
        for name in checkpoints(waiting):
            self.assert_same_state(os.path.join(waiting, name), os.path.join(beside, name))
        graphs = self.path("graphs")
        output = self.train(1, graphs, *EXACT, "--cuda-graph", options=CNN)
        self.assertEqual(self.digest(output), digest, "with CUDA graphs")
        if DEVICE == "cuda":
            self.assertNotIn("no CUDA graph", output)

    def test_an_overflow_is_computed_again_and_the_schedule_stays(self):
        unbroken = self.unbroken()
        folder = self.path("fp16")
        drill = ["--precision", "fp16", "--init-scale", "1024", "--inject", "overflow@3,7"]
        self.train(1, folder, *EXACT, *drill, options=THREE_EPOCHS)
        steps = metrics(folder)[0]
        self.assert_same_course(folder, unbroken)
        self.assertEqual([row["step"] for row in steps if row["attempts"] == 2], [3, 7])
        self.assertEqual([row["loss_scale"] for row in steps[1:8]], [1024, 512, 512, 512, 512, 256, 256])
        self.verify(folder)

    def test_all_devices_are_the_run_of_one(self):
        if NUM_DEVICES < 2:
            self.skipTest("there is one device only")
        unbroken = self.unbroken()
        folder = self.path("run")
        digest = self.digest(self.train(NUM_DEVICES, folder, *EXACT, options=THREE_EPOCHS))
        self.assertEqual(digest, self.unbroken_digest)
        self.assert_same_course(folder, unbroken, ("step", "lr", "loss", "grad_norm"))

    def test_more_ranks_than_devices_are_refused(self):
        if DEVICE == "cpu":
            self.skipTest("the CPU takes any number of ranks")
        refused = launch(NUM_DEVICES + 1, "--train-data", self.data, *SMALL_RUN, "--device", DEVICE, "--max-steps", "1")
        self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
        self.assertRegex(refused.stderr, re.compile(r"rank", re.IGNORECASE))
        self.assertIn("device", refused.stderr)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)


if __name__ == "__main__":
    main()
