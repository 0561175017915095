"""Data that lockstep-train takes, and the sentences for data that it cannot take."""

import os
import subprocess
import unittest

from train_support import TrainTest, launch, main

RUN = "--model mlp --hidden-sizes 8 --micro-batch-size 2 --global-batch-size 4 --max-steps 3 --seed 5".split()
NUM_SAMPLES = 8


class DataTest(TrainTest):
    def made(self, name, labels, side=4, label_shape=(), label_kind="integer"):
        """A file of small images with these labels, made by a tool of HDF5's own."""
        path = self.path(name + ".h5")
        images = [index * 7 % 11 for index in range(NUM_SAMPLES * side * side)]
        arguments = []
        for field, values, kind, shape in (("images", images, "real", (NUM_SAMPLES, 1, side, side)),
                                           ("labels", labels, label_kind, (NUM_SAMPLES, *label_shape))):
            source = f"{path}.{field}"
            with open(source, "w", encoding="ascii") as file:
                file.write(" ".join(map(str, values)))
            letters, bits = ("IN", 64) if kind == "integer" else ("FP", 32)
            with open(source + ".shape", "w", encoding="ascii") as file:
                file.write(f"PATH {field}\nINPUT-CLASS TEXT{letters}\nRANK {len(shape)}\n"
                           f"DIMENSION-SIZES {' '.join(map(str, shape))}\n"
                           f"OUTPUT-CLASS {letters}\nOUTPUT-SIZE {bits}\n")
            arguments += [source, "-c", source + ".shape"]
        subprocess.run(["h5import", *arguments, "-o", path], check=True)
        return path

    def classes(self, largest):
        return [index % (largest + 1) for index in range(NUM_SAMPLES)]

    def trained(self, data, *options, ranks=2):
        done = launch(ranks, "--train-data", data, *RUN, *options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.digest(done.stdout)

    def refused(self, words, data, *options):
        done = launch(2, "--train-data", data, *RUN, *options)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_label_in_a_row_of_its_own_is_a_label(self):
        flat = self.made("flat", self.classes(2))
        rows = self.made("rows", self.classes(2), label_shape=(1,))
        self.assertEqual(self.trained(rows, "--validation-data", rows), self.trained(flat))

    def test_whole_numbers_are_targets_of_a_regression(self):
        data = self.made("whole", self.classes(2))
        real = self.made("real", self.classes(2), label_kind="real")
        self.assertEqual(self.trained(data, "--loss", "mse"), self.trained(real, "--loss", "mse"))

    def test_an_epoch_is_finished_with_the_data_it_began_with(self):
        data = self.made("begun", self.classes(2))
        packed = self.path("packed.h5")
        subprocess.run(["h5repack", "-l", "images:CHUNK=2x1x4x4", "-f", "images:GZIP=1", data, packed], check=True)
        other = self.made("other", self.classes(2)[::-1])
        folder = self.path("run")

        def trained(data, *options, code):
            done = launch(2, "--train-data", data, *RUN, "--checkpoint-dir", folder, *options)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done.stdout + done.stderr

        trained(data, "--stop-after-steps", "1", code=85)
        message = trained(other, code=2)
        for words in ("training data are not those of", "middle of epoch 0, after 4 of its samples", "--finetune-from"):
            self.assertIn(words, message)
        self.assertNotIn("digest:", trained(packed, "--stop-after-steps", "1", code=85))
        self.assertRegex(trained(other, code=0), r"train_data_digest: [0-9a-f]{16} -> [0-9a-f]{16}")
        # A run that is over, though in the middle of an epoch, has no use for data any more.
        self.assertIn("nothing is done", trained(data, code=0))

    def test_targets_that_are_no_classes_are_refused(self):
        real = self.made("real", self.classes(2), label_kind="real")
        self.refused(["labels", "float32", "one class index", "--loss mse"], real)
        self.refused(["labels", "float32", "one class index"], real, "--num-classes", "10")
        pairs = self.made("pairs", 2 * self.classes(2), label_shape=(2,))
        self.refused(["int64[2]", "one class index"], pairs)

    def test_a_class_that_the_model_does_not_have_is_refused(self):
        data = self.made("nine", [*range(4), 9, 1, 2, 3])
        self.refused(["holds the class 9", "has 5 classes", "--num-classes 10"], data, "--num-classes", "5")
        fewer = self.made("fewer", self.classes(2))
        self.refused([data, "holds the class 9", "has 3 classes"], fewer, "--validation-data", data)
        self.trained(fewer, "--validation-data", data, "--num-classes", "10")

    def test_a_validation_set_of_other_images_is_refused_before_the_first_step(self):
        data = self.made("small", self.classes(2))
        other = self.made("large", self.classes(2), side=6)
        self.refused(["[1, 6, 6]", other, "[1, 4, 4]", data], data, "--validation-data", other)


if __name__ == "__main__":
    main()
