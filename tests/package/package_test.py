"""What `cmake --install` puts into a prefix: programs that run there, and a package that another project builds on.

    package_test.py BUILD_FOLDER SOURCE_FOLDER MPIEXEC [unittest's arguments]
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE, MPIEXEC = (sys.argv.pop(1) for _ in range(3))
CONSUMER = os.path.join(SOURCE, "tests", "package", "consumer")


def run(*command, env=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})


def run_path_of(program):
    return run("readelf", "-d", program).stdout


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        cls.prefix = os.path.join(cls.folder, "prefix")
        done = run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def configure(self, *options, languages="C;CXX", env=None):
        """Configures the other project; its build folder, and how that went."""
        build = os.path.join(self.folder, self.id().rsplit(".", 1)[-1])
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={cache}" for cache in [shutil.which("ccache")] if cache]
        done = run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
                   f"-DLANGUAGES={languages}", f"-DOWN_MODEL={SOURCE}/examples/own_model.cpp", *launcher, *options, env=env)
        return build, done

    def configure_with_package(self, **settings):
        return self.configure(f"-DCMAKE_PREFIX_PATH={self.prefix}", **settings)

    def assert_our_warnings_stay_ours(self, build):
        with open(os.path.join(build, "compile_commands.json")) as file:
            commands = {os.path.basename(entry["file"]): entry["command"] for entry in json.load(file)}
        self.assertNotIn("-Wconversion", commands["own_model.cpp"])
        return commands

    def test_installed_programs_run(self):
        for name in ("lockstep-train", "lockstep-plan", "lockstep-checkpoint"):
            built, installed = (run(os.path.join(folder, "bin", name), "--version") for folder in (BUILD, self.prefix))
            self.assertEqual(installed.returncode, 0, installed.stderr)
            self.assertEqual(installed.stdout, built.stdout)

    def test_installed_programs_find_the_plugin_and_that_finds_libtorch(self):
        plugin = os.path.join(self.prefix, "lib", "liblockstep_cuda.so")
        if not os.path.exists(plugin):
            self.skipTest("this configuration builds no CUDA plug-in")
        self.assertIn("$ORIGIN/../lib", run_path_of(os.path.join(self.prefix, "bin", "lockstep-train")))
        self.assertRegex(run("ldd", plugin).stdout, r"libtorch_cuda\.so => /")

    def test_another_project_finds_the_package_and_trains(self):
        build, done = self.configure_with_package()
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("cmake", "--build", build)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assert_our_warnings_stay_ours(build)
        program = os.path.join(build, "own-model")
        self.assertIn(os.path.join(self.prefix, "lib"), run_path_of(program))  # where the plug-in is
        theirs = run(MPIEXEC, "-n", "2", "--oversubscribe", "--bind-to", "none", program, os.path.join(build, "on-2"))
        ours = run(os.path.join(BUILD, "bin", "own-model"), os.path.join(build, "on-1"))
        self.assertEqual((theirs.returncode, ours.returncode), (0, 0), theirs.stderr + ours.stderr)
        self.assertEqual(theirs.stdout.splitlines()[-1], ours.stdout.splitlines()[-1])

    def test_another_project_includes_the_sources_and_gets_the_libraries_alone(self):
        build, done = self.configure(f"-DLOCKSTEP_SOURCE={SOURCE}", "-DLOCKSTEP_CUDA=OFF")
        self.assertEqual(done.returncode, 0, done.stderr)
        commands = self.assert_our_warnings_stay_ours(build)
        self.assertIn("-Wconversion", commands["trainer.cpp"])
        for left_out in ("train_main.cpp", "import_fashion_mnist.cpp", "trainer_test.cpp"):
            self.assertNotIn(left_out, commands)
        self.assertNotIn("lockstep", run("cmake", "--install", build, "--prefix", os.path.join(build, "prefix")).stdout)

    def test_a_libtorch_of_another_version_is_refused(self):
        torch = os.path.join(self.folder, "torch-2.4")
        headers = os.path.join(torch, "include", "torch", "csrc", "api", "include", "torch")
        os.makedirs(headers)
        with open(os.path.join(headers, "version.h"), "w") as file:
            file.write("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 4\n")
        os.makedirs(os.path.join(torch, "lib"))
        for library in ("torch_cpu", "c10"):
            open(os.path.join(torch, "lib", f"lib{library}.so"), "w").close()
        done = self.configure_with_package(env={"LOCKSTEP_TORCH_DIR": torch})[1]
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(" ".join(done.stderr.split()), r"built with LibTorch \d+\.\d+, and .* is 2\.4: point")

    def test_a_project_without_c_is_told_to_have_it(self):
        done = self.configure_with_package(languages="CXX")[1]
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("project(... LANGUAGES C CXX)", " ".join(done.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
