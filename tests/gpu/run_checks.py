"""Runs the checks of tests/gpu.sh one after the other, each in a time box of its own, and writes the report.

Started by tests/gpu.sh, which explains its options. Exit code 0: none failed; 1: one did; 77: there is no GPU.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import built
import machine
from report import Check, Outcome, Report

HERE = Path(__file__).resolve().parent
CLOSING_SECONDS = 5  # kept back for the report
GRACE_SECONDS = 2  # between asking a command to end and ending it


@dataclass
class Ended:
    """How a command ended."""

    code: int | None  # None: it was stopped at the end of its time box
    output: str

    def last_lines(self, count=3):
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-600:]


def run(command, seconds, environment=None):
    """Runs a command and all that it starts for no longer than `seconds`."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(environment or {})}, start_new_session=True)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()  # mpirun ends its ranks
            try:
                process.wait(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        finally:
            for pid in processes_of_session(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                process.wait(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # it hangs in the driver, which no signal ends: the other checks are told without it
        output.seek(0)
        return Ended(code, output.read())


def processes_of_session(session):
    """What a command left running, in whatever process group."""
    found = []
    for file in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(file, encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()  # the name before it may hold anything
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(int(file.split("/")[2]))
    return found


@dataclass
class Setting:
    """What is checked, and where."""

    built: built.Built
    device: str
    num_devices: int
    is_exclusive: bool  # a device takes one process
    torch: str
    torch_libraries: list

    def program(self, name):
        return str(self.built.programs / name)

    def mpi(self, num_ranks):
        return [self.built.mpirun, "-n", str(num_ranks), "--oversubscribe", "--bind-to", "none"]


# What a check gives back: outcome, reason, figures.


def passed(**figures):
    return Outcome.PASSED, "", figures


def failed(reason, **figures):
    return Outcome.FAILED, reason, figures


def skipped(reason, **figures):
    return Outcome.SKIPPED, reason, figures


class OutOfTime(Exception):
    """A command that was stopped at the end of its time box."""

    def __init__(self, ended, **figures):
        super().__init__(f"it last wrote: {ended.last_lines()}")
        self.figures = figures


# --- what is there ------------------------------------------------------------------------------------------------


def check_programs(setting, box):
    folder = setting.built.programs
    missing = [name for name in built.PROGRAMS if not (folder / name).exists()]
    if missing:
        return failed(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in {folder}: build with "
                      "-DLOCKSTEP_CUDA=ON, or unpack the whole bundle.")
    ended = run([setting.program("lockstep-train"), "--version"], box)
    if ended.code != 0:
        return failed(f"lockstep-train does not start: {ended.last_lines()}")
    return passed(version=ended.output.strip())


def check_libtorch(setting, _box):
    if not setting.torch:
        return failed("There is no LibTorch: neither LOCKSTEP_TORCH_DIR nor a Python module torch names one.")
    found, wanted = machine.torch_version(setting.torch), setting.built.libtorch
    figures = {"found": found, "built_with": wanted}
    if not found:
        return failed(f"{setting.torch} does not say which LibTorch it is (no version.py): point LOCKSTEP_TORCH_DIR at "
                      "one.", **figures)
    if found.split(".")[:2] != wanted.split(".")[:2]:
        return failed(f"LibTorch is {found} here ({setting.torch}), but the programs were built with {wanted}, and its "
                      f"interfaces change between versions: install torch {wanted.split('+')[0]}, or point "
                      "LOCKSTEP_TORCH_DIR at it.", **figures)
    if not os.path.exists(os.path.join(setting.torch, "lib", "libtorch_cuda.so")):
        return failed(f"The LibTorch in {setting.torch} has no CUDA half (libtorch_cuda.so): install one with CUDA.",
                      **figures)
    return passed(**figures)


def check_libraries(setting, box):
    missing = set()
    names = ["lockstep-train", "gpu_device_test", *([built.PLUGIN] if setting.device == "cuda" else [])]
    environment = {}
    if setting.built.libraries:
        folders = [str(setting.built.libraries), *setting.torch_libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    for name in [setting.built.real(name) for name in names]:
        if not name.exists():
            return failed(f"{name.name} is not in {name.parent}: build with -DLOCKSTEP_CUDA=ON.")
        ended = run(["ldd", name], box, environment)
        missing.update(re.findall(r"^\s*(\S+) => not found", ended.output, re.MULTILINE))
        too_new = sorted(set(re.findall(r"version `([^']+)' not found", ended.output)))
        if too_new:
            return failed(f"The C and C++ libraries of this machine are older than those of the build ({name.name} "
                          f"needs {', '.join(too_new)}): build on this machine, or on an older one.")
    if missing:
        return failed(f"The loader does not find {', '.join(sorted(missing))}: install what holds "
                      f"{'it' if len(missing) == 1 else 'them'}, or add its folder to LD_LIBRARY_PATH.")
    return passed()


# --- the tests ----------------------------------------------------------------------------------------------------


def device_tests(program, pattern, num_ranks):
    """A check that runs tests of a program of GoogleTest."""

    def check(setting, box):
        ranks = num_ranks(setting) if callable(num_ranks) else num_ranks
        if ranks == 0:
            return skipped("There is one device only.")
        if ranks > setting.num_devices and setting.is_exclusive:
            return skipped("The device is in exclusive mode: two processes cannot share it.")
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.json"
            command = [setting.program(program), f"--gtest_filter={pattern}", "--gtest_color=no",
                       f"--gtest_output=json:{results}"]
            ended = run(command if ranks == 1 else [*setting.mpi(ranks), *command], box)
            if ended.code is None:
                raise OutOfTime(ended)
            if not results.exists():
                return failed(f"The tests ended with exit code {ended.code} and without results: {ended.last_lines()}")
            tests = [test for suite in json.loads(results.read_text())["testsuites"] for test in suite["testsuite"]]
        bad = [f"{test['classname']}.{test['name']}" for test in tests if "failures" in test]
        left_out = [test for test in tests if test.get("result") == "SKIPPED"]
        figures = {"ranks": ranks, "tests": len(tests), "failed": bad, "skipped": len(left_out),
                   "seconds_of_tests": {f"{test['classname']}.{test['name']}": test["time"] for test in tests}}
        if bad or ended.code != 0:
            first = next((test["failures"][0]["failure"] for test in tests if "failures" in test), ended.last_lines())
            return failed(f"{len(bad)} of {len(tests)} tests failed: {', '.join(bad)}. The first says: "
                          f"{' '.join(first.split())[:600]}", **figures)
        if len(left_out) == len(tests):
            return skipped("All of its tests left themselves out: " +
                           (re.findall(r": Skipped\n(.+)", ended.output) or ["they gave no reason"])[0], **figures)
        return passed(**figures)

    return check


def check_train(setting, box):
    command = [sys.executable, HERE / "train_device_test.py", setting.built.programs, setting.built.mpirun,
               setting.device, str(setting.num_devices), *([setting.built.data] if setting.built.data else [])]
    ended = run(command, box)
    if ended.code is None:
        raise OutOfTime(ended)
    count = re.search(r"^Ran (\d+) tests? in", ended.output, re.MULTILINE)
    bad = re.findall(r"^(?:FAIL|ERROR): (\w+)", ended.output, re.MULTILINE)
    left_out = re.findall(r"(\w+) \(.*skipped '(.*)'", ended.output)
    figures = {"tests": int(count.group(1)) if count else 0, "failed": bad, "skipped": dict(left_out)}
    if ended.code != 0:
        return failed(f"{', '.join(bad) or 'The test'} failed: {first_complaint(ended)}", **figures)
    return passed(**figures)


def first_complaint(ended):
    found = re.search(r"^(\w*(?:Error|Expired)\w*: .*(?:\n(?!-----|=====).*){0,12})", ended.output, re.MULTILINE)
    return " ".join(found.group(1).split())[:900] if found else ended.last_lines()


def check_sanitizer(setting, box):
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool:
        return skipped("There is no compute-sanitizer on this machine (it comes with the CUDA toolkit).")
    figures = {"tool": tool}
    # NCCL asks for what a device may not have, and goes on without it: that is no fault.
    options = ["--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "66"]
    training = ("gpu_device_test", "DeviceTraining.FollowsTheCpuWithAdamToo")
    for name, (program, pattern) in (("plugin_memcheck", ("device_test", "*")), ("training_memcheck", training)):
        start = time.monotonic()
        ended = run([tool, *options, setting.program(program), f"--gtest_filter={pattern}"], box)
        box -= time.monotonic() - start
        found = re.findall(r"ERROR SUMMARY: .*", ended.output)
        figures[name] = found[-1] if found else "no summary"
        if re.search(r"Device not supported|is not supported on this", ended.output):
            return skipped(f"compute-sanitizer does not work with this device: {ended.last_lines(2)}", **figures)
        if ended.code is None:
            raise OutOfTime(ended, **figures)
        if ended.code != 0:
            complaint = re.search(r"========= (?!COMPUTE-SANITIZER)(.*)", ended.output)
            return failed(f"{name}: {complaint.group(1) if complaint else ended.last_lines()}", **figures)
    return passed(**figures)


def check_step_time(setting, box):
    start = time.monotonic()
    ended = run([sys.executable, "-c", "import torch, numpy; print(torch.cuda.is_available())"], min(box, 60))
    box -= time.monotonic() - start
    if ended.code != 0:
        return skipped(f"{sys.executable} has no torch to compare with: {ended.last_lines(1)}")
    if setting.device == "cuda" and not ended.output.strip().endswith("True"):
        return skipped(f"The torch of {sys.executable} does not see the GPU: {ended.last_lines(1)}")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, HERE.parent / "bench/side_by_side.py", "--step-bench", setting.program("step_bench"),
                   "--device", setting.device, "--mpirun", setting.built.mpirun, "--pairs", "9", "--time-limit",
                   str(max(1, box - 45)), "--json", results]
        if setting.device == "cuda":
            command += ["--ranks", str(setting.num_devices)]
        else:
            command += ["--pairs", "2", "--workload", "small-mlp"]
        ended = run(command, box)
        if ended.code is None:
            raise OutOfTime(ended)
        if ended.code != 0:
            return failed(f"The comparison failed: {ended.last_lines()}")
        figures = json.loads(results.read_text())
    sys.stdout.write(ended.output)
    return passed(**figures)


# --- all of it ----------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    name: str
    most_seconds: float
    check: Callable
    least_seconds: float = 10.0  # with less than this left it is not begun
    is_slow: bool = False  # how long it takes tells nothing: not to end is no failure


def all_devices(setting):
    return setting.num_devices if setting.num_devices > 1 else 0


PRESENCE = [
    Plan("programs", 30, check_programs),
    Plan("libtorch", 30, check_libtorch),
    Plan("libraries", 60, check_libraries),
]
CHECKS = [
    Plan("plugin", 150, device_tests("device_test", "*", 1)),  # the first to load gigabytes of libraries
    Plan("training", 90, device_tests("gpu_device_test", "DeviceTraining.*", 1)),
    Plan("precision", 60, device_tests("gpu_device_test", "DevicePrecision.*", 1)),
    Plan("checkpoint", 60, device_tests("gpu_device_test", "DeviceCheckpoint.*", 1)),
    Plan("graphs", 60, device_tests("gpu_device_test", "DeviceGraphs.*", 1)),
    Plan("plugin-on-all-devices", 60, device_tests("device_test", "*", all_devices)),
    Plan("training-on-all-devices", 90, device_tests("gpu_device_test", "*", all_devices)),
    Plan("three-ranks", 120, device_tests("gpu_device_test", "*", 3)),
    Plan("lockstep-train", 150, check_train),
    Plan("step-time", 150, check_step_time, least_seconds=60, is_slow=True),
    Plan("compute-sanitizer", 120, check_sanitizer, least_seconds=30, is_slow=True),
]


def run_plan(plan, setting, report, deadline):
    left = deadline - time.monotonic() - CLOSING_SECONDS
    if left < plan.least_seconds:
        result = skipped(f"The time limit of {report.time_limit_seconds:.0f} s left it {max(left, 0):.0f} s: run it "
                         f"alone with --only {plan.name}.")
        seconds = 0.0
    else:
        start = time.monotonic()
        box = min(plan.most_seconds, left)
        try:
            result = plan.check(setting, box)
        except OutOfTime as error:
            was_cut = box < plan.most_seconds
            reason = f"It did not end within {box:.0f} s{', all that was left' if was_cut else ''}; {error}"
            result = (skipped if was_cut or plan.is_slow else failed)(reason, **error.figures)
        except Exception as error:  # a fault of the script is a failed check, and the report is written
            result = failed(f"The check itself broke off with {type(error).__name__}: {error}")
        seconds = time.monotonic() - start
    outcome, reason, figures = result
    check = Check(plan.name, outcome, reason, seconds, figures)
    report.add(check)
    print(report.line(check), flush=True)
    return outcome


def choose(names):
    known = [plan.name for plan in CHECKS]
    for name in names:
        if name not in known:
            print(f"gpu.sh: there is no check {name}: take some of {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return [plan for plan in CHECKS if not names or plan.name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--build", type=Path)
    source.add_argument("--bundle", type=Path)
    parser.add_argument("--report", default="")
    parser.add_argument("--time-limit", type=float, default=480.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    plans = choose(options.only)
    deadline = time.monotonic() + options.time_limit

    driver = machine.Driver()
    programs = built.of_bundle(options.bundle) if options.bundle else built.of_build(options.build)
    torch = machine.torch_folder(built.torch_of(options.build) if options.build else None)
    libraries = machine.torch_libraries(torch)
    os.environ["LOCKSTEP_TORCH_LIBRARIES"] = ":".join(libraries)  # the scripts of a bundle read it
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.device == "cpu":
        os.environ["LOCKSTEP_TEST_DEVICE"] = "cpu"
    setting = Setting(programs, options.device, len(driver.names) or 1, driver.is_exclusive, torch, libraries)

    report = Report(options.report, options.device, options.time_limit)
    report.machine = machine.facts(driver, torch, libraries)
    report.has_device = options.device == "cpu" or bool(driver.names)
    for name, value in report.machine.items():
        print(f"{name:<16}{(', '.join(value) if isinstance(value, list) else value) or 'none'}")
    print(flush=True)

    fit = all([run_plan(plan, setting, report, deadline) == Outcome.PASSED for plan in PRESENCE])
    why_not = ""
    if options.device == "cuda" and not driver.names:
        why_not = f"There is no GPU: {driver.why_no_device}."
        if driver.cuda_version:
            why_not += f" The driver is for CUDA {machine.version_text(driver.cuda_version)}."
    elif not fit:
        why_not = "What it needs is not there: see the checks above."
    for plan in plans:
        if why_not:
            report.add(Check(plan.name, Outcome.SKIPPED, why_not))
        else:
            run_plan(plan, setting, report, deadline)
    if why_not:
        print(f"\n{why_not} Nothing was run.")
    elif options.device == "cpu":
        print("\nNothing was run on a device: the CPU stood in for it, to try the checks themselves.")
    if options.report:
        print(f"\nThe report is in {options.report}.")
    print(f"Outcome: {report.outcome}.")
    sys.exit(report.exit_code())


if __name__ == "__main__":
    main()
