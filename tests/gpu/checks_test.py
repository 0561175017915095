"""The scripts of tests/gpu.sh, tried without a GPU: the report, the time boxes, and what is made of a program's end.

CHECKS_TEST.py [FOLDER_OF_A_BUILD] [unittest's arguments]. With a build that has the plug-in, gpu.sh itself is run.
"""

import argparse
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import built
import machine
import pack
import run_checks
from report import NO_DEVICE, Check, Outcome, Report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import side_by_side  # noqa: E402

BUILD = Path(sys.argv.pop(1)) if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else None
SCRIPT = Path(__file__).resolve().parent.parent / "gpu.sh"


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class InFolder(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.setting = run_checks.Setting(built.Built(self.folder, "mpirun", "2.11.0+cu130"), "cuda", 1, False, "", [])

    def program(self, name, text):
        file = self.folder / name
        file.write_text("#!/bin/sh\n" + text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file


class ReportTest(InFolder):
    def report(self):
        return Report(str(self.folder / "report.json"), "cuda", 480.0)

    def test_it_is_whole_after_every_check(self):
        report = self.report()
        for number, outcome in enumerate(Outcome):
            report.add(Check(f"check {number}", outcome, "A sentence.", 1.26, {"losses": [1.0, 2.0]}))
            content = json.loads((self.folder / "report.json").read_text())
            self.assertEqual(len(content["checks"]), number + 1)
            self.assertEqual(content["checks"][-1], {"name": f"check {number}", "outcome": outcome.value,
                                                     "reason": "A sentence.", "seconds": 1.3,
                                                     "figures": {"losses": [1.0, 2.0]}})
        self.assertEqual(os.listdir(self.folder), ["report.json"])

    def test_what_did_not_pass_has_a_reason_and_a_name_is_used_once(self):
        for outcome in (Outcome.FAILED, Outcome.SKIPPED):
            with self.assertRaises(ValueError):
                Check("training", outcome)
        report = self.report()
        report.add(Check("training", Outcome.PASSED))
        with self.assertRaises(ValueError):
            report.add(Check("training", Outcome.PASSED))

    def test_its_exit_code_tells_how_it_went(self):
        report = self.report()
        report.add(Check("one", Outcome.SKIPPED, "There was no time."))
        self.assertEqual((report.outcome, report.exit_code()), ("nothing checked", 1))
        report.add(Check("two", Outcome.PASSED))
        self.assertEqual((report.outcome, report.exit_code()), ("passed", 0))
        report.add(Check("three", Outcome.FAILED, "It is wrong."))
        self.assertEqual((report.outcome, report.exit_code()), ("failed", 1))
        report.has_device = False
        self.assertEqual((report.outcome, report.exit_code()), ("no device", NO_DEVICE))


class TimeBoxTest(InFolder):
    def test_what_a_command_started_ends_with_it(self):
        begin = time.monotonic()
        # In a process group of its own, as mpirun starts its ranks, and deaf to requests.
        child = ("import os, signal, time; os.setpgid(0, 0); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                 "time.sleep(60)")
        ended = run_checks.run(["sh", "-c", f'"{sys.executable}" -c "{child}" & echo $!; wait'], 2.0)
        self.assertLess(time.monotonic() - begin, 20.0)
        self.assertIsNone(ended.code)
        pid = int(ended.output)
        for _ in range(100):
            if not is_running(pid):
                break
            time.sleep(0.1)
        self.assertFalse(is_running(pid))

    def outcome(self, plan, seconds_left):
        report = Report("", "cuda", 480.0)
        run_checks.run_plan(plan, self.setting, report, time.monotonic() + seconds_left + run_checks.CLOSING_SECONDS)
        return report.checks[0]

    def test_a_check_gets_its_box_or_what_is_left_and_is_not_begun_without_time(self):
        boxes = []
        plan = run_checks.Plan("training", 90, lambda _, box: boxes.append(box) or run_checks.passed(), 10)
        self.assertEqual(self.outcome(plan, 400).outcome, Outcome.PASSED)
        self.assertEqual(self.outcome(plan, 30).outcome, Outcome.PASSED)
        self.assertEqual(boxes[0], 90)
        self.assertAlmostEqual(boxes[1], 30, delta=1)
        check = self.outcome(plan, 9)
        self.assertEqual(check.outcome, Outcome.SKIPPED)
        self.assertRegex(check.reason, r"time limit of 480 s left it [89] s: run it alone with --only training")
        self.assertEqual(len(boxes), 2)

    def test_what_does_not_end_has_failed_unless_it_was_cut_short(self):
        def endless(_setting, box):
            raise run_checks.OutOfTime(run_checks.Ended(None, f"step 7 of {box:.0f}"), steps=7)

        check = self.outcome(run_checks.Plan("training", 90, endless), 400)
        self.assertEqual((check.outcome, check.figures), (Outcome.FAILED, {"steps": 7}))
        self.assertEqual(check.reason, "It did not end within 90 s; it last wrote: step 7 of 90")
        self.assertEqual(self.outcome(run_checks.Plan("training", 90, endless), 50).outcome, Outcome.SKIPPED)
        self.assertEqual(self.outcome(run_checks.Plan("training", 90, endless, is_slow=True), 400).outcome,
                         Outcome.SKIPPED)

    def test_every_check_has_a_name_of_its_own_and_a_box(self):
        names = [plan.name for plan in run_checks.PRESENCE + run_checks.CHECKS]
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(plan.least_seconds <= plan.most_seconds for plan in run_checks.CHECKS))

    def test_a_check_that_breaks_off_has_failed(self):
        def broken(_setting, _box):
            raise KeyError("testsuites")

        check = self.outcome(run_checks.Plan("training", 90, broken), 400)
        self.assertEqual(check.outcome, Outcome.FAILED)
        self.assertIn("KeyError", check.reason)


class DeviceTestsTest(InFolder):
    """A script stands for gpu_device_test, and leaves the results that GoogleTest would."""

    def check(self, tests, code=0, text="", seconds=20.0):
        suites = {"testsuites": [{"name": "Device", "testsuite": [
            {"name": name, "classname": "Device", "time": "0.5s", "result": result,
             **({"failures": [{"failure": "expected 1,\n  got 2"}]} if result == "FAILED" else {})}
            for name, result in tests.items()]}]}
        (self.folder / "made.json").write_text(json.dumps(suites))
        copy = f"cp {self.folder}/made.json \"$out\"\n" if tests else ""
        self.program("gpu_device_test", 'for a; do case $a in --gtest_output=json:*) out=${a#*json:};; esac; done\n'
                     f"{copy}echo '{text}'\n[ '{text}' != hang ] || sleep 60\nexit {code}\n")
        return run_checks.device_tests("gpu_device_test", "Device*", 1)(self.setting, seconds)

    def test_passed_failed_and_skipped_tests_are_told_apart(self):
        outcome, reason, figures = self.check({"Trains": "COMPLETED", "Graphs": "SKIPPED"})
        self.assertEqual((outcome, reason, figures["tests"], figures["skipped"]), (Outcome.PASSED, "", 2, 1))
        outcome, reason, figures = self.check({"Trains": "COMPLETED", "Saves": "FAILED"}, code=1)
        self.assertEqual(outcome, Outcome.FAILED)
        self.assertIn("1 of 2 tests failed: Device.Saves. The first says: expected 1, got 2", reason)
        self.assertEqual(figures["failed"], ["Device.Saves"])
        outcome, reason, _ = self.check({"Trains": "SKIPPED"}, text="test.cpp:7: Skipped\nno device: none")
        self.assertEqual(outcome, Outcome.SKIPPED)
        self.assertIn("no device: none", reason)

    def test_a_crash_and_a_hang_have_failed(self):
        outcome, reason, _ = self.check({}, code=139, text="Segmentation fault")
        self.assertEqual(outcome, Outcome.FAILED)
        self.assertIn("exit code 139 and without results: Segmentation fault", reason)
        outcome, reason, _ = self.check({"Trains": "COMPLETED"}, code=1, text="aborted at the end")
        self.assertEqual(outcome, Outcome.FAILED)
        self.assertIn("aborted at the end", reason)
        with self.assertRaisesRegex(run_checks.OutOfTime, "it last wrote: hang"):
            self.check({"Trains": "COMPLETED"}, text="hang", seconds=1.0)


class SanitizerTest(InFolder):
    def check(self, script):
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        self.program("tools/compute-sanitizer", script)
        with mock.patch.dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}"):
            return run_checks.check_sanitizer(self.setting, 30.0)

    def test_it_tells_what_was_found(self):
        summary = "echo '========= ERROR SUMMARY: 0 errors'\n"
        outcome, _, figures = self.check(summary)
        self.assertEqual(outcome, Outcome.PASSED)
        self.assertEqual(figures["plugin_memcheck"], "ERROR SUMMARY: 0 errors")
        outcome, reason, _ = self.check("echo '========= COMPUTE-SANITIZER'\n"
                                        "echo '========= Invalid __global__ write of size 4 bytes'\nexit 66\n")
        self.assertEqual((outcome, reason),
                         (Outcome.FAILED, "plugin_memcheck: Invalid __global__ write of size 4 bytes"))
        outcome, reason, _ = self.check("echo '========= Error: Device not supported. See the manual'\nexit 1\n")
        self.assertEqual(outcome, Outcome.SKIPPED)
        self.assertIn("does not work with this device", reason)


class StepTimeTest(InFolder):
    """Scripts stand for the programs that are compared."""

    def sides(self, losses):
        options = argparse.Namespace(device="cuda", ranks=2, mpirun="mpirun", step_bench="step_bench")
        sides = side_by_side.make_sides(options)
        for (name, side), (loss, seconds) in zip(sides.items(), losses):
            report = json.dumps({"seconds_per_step": seconds, "cpu_seconds_per_step": seconds, "first_loss": loss})
            log = self.folder / (name.replace(" ", "-") + ".log")
            program = self.program(name.replace(" ", "-"), f'echo "rank $RANK of $WORLD_SIZE: $*" >>{log}\n'
                                                           f"echo '{report}'\n")
            side.command = [str(program)]
            side.launcher = ["env"] if side.launcher else ()
        return sides

    def test_on_devices_three_sides_run_in_turn_and_python_gets_a_process_a_rank(self):
        sides = self.sides([(2.3, 0.004), (2.3001, 0.002), (2.3, 0.001)])
        comparison = side_by_side.Comparison("cnn", "cuda", sides, self.folder)
        with mock.patch("sys.stderr"):
            side_by_side.run_pairs([comparison], 3, None)
        figures = comparison.figures()
        self.assertEqual((figures["pairs"], figures["ratio"], figures["graph_ratio"]), (3, 2.0, 4.0))
        python = (self.folder / "python.log").read_text().splitlines()
        self.assertIn("--export-weights", python[0])
        self.assertEqual(sorted(line.split(":")[0] for line in python[1:]), 3 * ["rank 0 of 2"] + 3 * ["rank 1 of 2"])
        self.assertEqual(len((self.folder / "lockstep.log").read_text().splitlines()), 3)

    def test_it_stops_when_the_time_is_over_or_the_sides_differ(self):
        comparison = side_by_side.Comparison("cnn", "cuda", self.sides(3 * [(2.3, 0.004)]), self.folder)
        with mock.patch("sys.stderr"):
            side_by_side.run_pairs([comparison], 100, 1e-9)
        self.assertEqual(comparison.figures()["pairs"], 1)
        other = side_by_side.Comparison("cnn", "cuda", self.sides([(2.3, 1), (2.31, 1), (2.3, 1)]), self.folder)
        with self.assertRaisesRegex(SystemExit, "do not compute the same"), mock.patch("sys.stderr"):
            other.run_pair()


class MachineTest(InFolder):
    def test_versions_are_read_as_their_makers_count_them(self):
        self.assertEqual(machine.version_text(13000), "13.0")
        self.assertEqual(machine.version_text(12080), "12.8")
        self.assertEqual(machine.version_text(22809, thousands=10000), "2.28.9")

    def test_a_machine_without_a_driver_says_so(self):
        driver = machine.Driver("libcuda-that-is-not-there.so")
        self.assertEqual((driver.names, driver.cuda_version), ([], 0))
        self.assertIn("no driver of NVIDIA on this machine", driver.why_no_device)

    def test_another_libtorch_than_the_builds_is_refused(self):
        for version, outcome in (("2.11.0+cu130", Outcome.PASSED), ("2.11.1+cu128", Outcome.PASSED),
                                 ("2.10.0+cu130", Outcome.FAILED)):
            torch = self.folder / version / "torch"
            (torch / "lib").mkdir(parents=True)
            (torch / "lib/libtorch_cuda.so").touch()
            (torch / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")
            self.setting.torch = str(torch)
            result = run_checks.check_libtorch(self.setting, 10)
            self.assertEqual(result[0], outcome, result)
        self.assertIn("install torch 2.11.0", result[1])
        (self.folder / "2.11.0+cu130/torch/lib/libtorch_cuda.so").unlink()
        self.setting.torch = str(self.folder / "2.11.0+cu130/torch")
        self.assertIn("no CUDA half", run_checks.check_libtorch(self.setting, 10)[1])


class PackTest(unittest.TestCase):
    def test_what_comes_with_libtorch_and_the_driver_stays_behind(self):
        for name in ("libcurl.so.4", "libmpi.so.40", "libhdf5_openmpi.so.103", "libcrypto.so.3", "libz.so.1"):
            self.assertIsNone(pack.NOT_PACKED.match(name), name)
        for name in ("libcuda.so.1", "libcudart.so.13", "libcublasLt.so.13", "libnccl.so.2", "libnvJitLink.so.13",
                     "libtorch_cpu.so", "libc10.so", "libc.so.6", "libstdc++.so.6", "libcupti.so.13"):
            self.assertIsNotNone(pack.NOT_PACKED.match(name), name)

    def test_open_mpis_plugins_for_one_machine_are_taken(self):
        for name in ("mca_btl_vader.so", "mca_btl_self.so", "mca_btl_tcp.so", "mca_pml_ob1.so", "mca_osc_sm.so",
                     "mca_plm_isolated.so", "mca_pmix_ext3x.so", "mca_ess_singleton.so", "mca_io_ompio.so"):
            self.assertIsNone(pack.NOT_NEEDED.search(name), name)
        for name in ("mca_pml_ucx.so", "mca_mtl_ofi.so", "mca_plm_slurm.so", "mca_btl_openib.so"):
            self.assertIsNotNone(pack.NOT_NEEDED.search(name), name)


@unittest.skipUnless(BUILD and (BUILD / "bin" / built.PLUGIN).exists(), "no build with the plug-in was named")
class ScriptTest(InFolder):
    def run_script(self, *arguments):
        report = self.folder / "report.json"
        done = subprocess.run([str(SCRIPT), "--build", str(BUILD), "--report", str(report), *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False)
        return done, json.loads(report.read_text()) if report.exists() else {}

    @unittest.skipIf(machine.Driver().names, "this machine has a GPU")
    def test_a_machine_without_a_gpu_is_told_and_nothing_is_run(self):
        done, report = self.run_script()
        self.assertEqual(done.returncode, NO_DEVICE, done.stdout)
        self.assertIn("There is no GPU", done.stdout)
        self.assertEqual(report["outcome"], "no device")
        checks = {check["name"]: check for check in report["checks"]}
        self.assertEqual(checks["programs"]["outcome"], "passed", done.stdout)
        for plan in run_checks.CHECKS:
            self.assertEqual(checks[plan.name]["outcome"], "skipped")
            self.assertIn("There is no GPU", checks[plan.name]["reason"])

    def test_the_checks_pass_where_the_cpu_stands_in(self):
        done, report = self.run_script("--device", "cpu", "--only", "checkpoint", "lockstep-train")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual((report["device"], report["outcome"]), ("cpu", "passed"))
        self.assertIn("Nothing was run on a device", done.stdout)

    def test_wrong_usage_is_told(self):
        for arguments in (["--only", "nonsense"], ["--speed"], ["--report"]):
            done, _ = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("gpu.sh: ", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
