#!/usr/bin/env python3
"""Signals, operators' files and failures at awkward moments, under plain mpirun: no Slurm is needed.

    LOCKSTEP_BUILD=build/release python3 tests/slurm/stop_test.py [Stops.SignalInTheFirstMoment ...]

Every test ends with the bits of the undisturbed run, or with the exit code that it is about.
"""
import os
import signal
import subprocess
import sys
import time
import traceback

import training
from training import MAX_STEPS, TRAIN, Failure, Run, check, pids_of, wait_for


def send(run, signal_number, ranks=None):
    """Sends a signal to all ranks, or to some."""
    pids = pids_of(run)
    for rank in sorted(pids) if ranks is None else ranks:
        os.kill(pids[rank], signal_number)


def stops(run, process, within=60.0):
    """The launch ends with 85, says so, and has saved the step that it stopped after; that step."""
    status = process.wait(within)
    check(status == 85, f"exit code {status} instead of 85")
    check("interrupted " in run.log(), "the log does not say that the run was interrupted")
    step = len(run.metrics())
    check(run.checkpoints()[-1:] == [step], f"{step} steps were taken, the checkpoints are {run.checkpoints()}")
    return step


def goes_on(run, ranks=2):
    run.finish(ranks)
    run.equals_the_undisturbed()


class Stops:
    """Requests to stop."""

    def SignalInTheFirstMoment(self):
        """A signal that comes while the libraries are still being loaded waits for the program to take it."""
        run = Run("first_moment")
        process = run.launch()
        wait_for("the ranks", lambda: len(pids_of(run)) == 2)
        send(run, signal.SIGTERM)
        check(process.wait(60) == 85, "exit code is not 85")
        check(len(run.metrics()) <= 1, f"{len(run.metrics())} steps were taken all the same")
        goes_on(run)

    def SignalDuringEvaluation(self):
        images = training.WORK / "held-back"  # many, so that the signal finds the evaluation still going on
        check(training.import_images(images, 6000), "there are no images to evaluate")
        run = Run("evaluation")
        process = run.launch(2, save_steps=0, validation_data=images / "test.h5",
                             evaluation_steps=20, evaluation_batch_size=1)
        run.reaches(60)  # an evaluation of 6000 single samples follows
        send(run, signal.SIGUSR1)
        check(60 <= stops(run, process) <= 61, f"stopped after {len(run.metrics())}")
        goes_on(run)

    def SignalsDuringSaves(self):
        """A save after every step: a signal comes in the middle of one more often than not."""
        run = Run("saves")
        for until in (20, 50, 80, 110):
            process = run.launch(2, save_steps=1, save_total_limit=2)
            run.reaches(until)
            send(run, signal.SIGTERM)
            check(stops(run, process) >= until, "stopped too early")
        goes_on(run)

    def TwoSignalsWithinAMillisecond(self):
        run = Run("twice")
        process = run.launch(2, save_steps=0)
        run.reaches(50)
        for pid in pids_of(run).values():
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGTERM)
        stops(run, process)
        check(len(run.checkpoints()) == 1, f"checkpoints: {run.checkpoints()}")
        goes_on(run)

    def FileHaltStopsTheRun(self):
        run = Run("halt")
        process = run.launch(2, save_steps=0)
        run.reaches(50)
        (run.folder / "HALT").touch()
        stops(run, process)
        check(not (run.folder / "HALT").exists(), "HALT is still there")
        check("HALT" in run.log(), "the log does not say who asked")
        goes_on(run, ranks=3)

    def FileSaveSavesAndGoesOn(self):
        run = Run("save")
        process = run.launch(2, save_steps=0)
        run.reaches(50)
        (run.folder / "SAVE").touch()
        check(process.wait(60) == 0, "the run did not go on")
        check(not (run.folder / "SAVE").exists(), "SAVE is still there")
        steps = run.checkpoints()
        check(len(steps) == 2 and 50 <= steps[0] < MAX_STEPS and steps[1] == MAX_STEPS, f"checkpoints: {steps}")
        run.equals_the_undisturbed()

    def DeadlineStopsTheRun(self):
        run = Run("deadline")
        run.finish(2, code=85, seconds=60, max_steps=100000, save_steps=0, time_limit="0:06", deadline_margin=1)
        check("the allocation ends in" in run.log(), "the log does not say why")
        check(len(run.checkpoints()) == 1, f"checkpoints: {run.checkpoints()}")

    def FinishedRunDoesNothing(self):
        run = Run("finished")
        run.finish(2)
        checkpoints = {file: file.stat().st_mtime_ns for file in run.folder.glob("*.h5")}
        run.finish(3)
        check(checkpoints == {file: file.stat().st_mtime_ns for file in run.folder.glob("*.h5")}, "files changed")
        check("complete " in run.log(), "the log does not say that the run is complete")
        run.equals_the_undisturbed()


class Cases:
    """Reported failures of other programs."""

    def C084UsrSignalsThroughMpirun(self):
        run = Run("c084")
        for until, number in ((50, signal.SIGUSR1), (100, signal.SIGUSR2)):
            process = run.launch(2, save_steps=0)
            run.reaches(until)
            process.send_signal(number)
            stops(run, process)
        goes_on(run)

    def C087SignalOnOneRankOnly(self):
        """Rank 1 alone; then ranks 0 and 3, 60 ms apart: all stop after the same step, with one checkpoint of it."""
        run = Run("c087")
        process = run.launch(4, save_steps=0)
        run.reaches(40)
        send(run, signal.SIGUSR1, [1])
        stops(run, process)
        process = run.launch(4, save_steps=0)
        run.reaches(90)
        pids = pids_of(run)
        os.kill(pids[0], signal.SIGTERM)
        time.sleep(0.06)
        os.kill(pids[3], signal.SIGTERM)
        stops(run, process)
        check(len(run.checkpoints()) == 2, f"checkpoints: {run.checkpoints()}")
        goes_on(run, ranks=4)

    def C089SecondSignalDuringTheSave(self):
        run = Run("c089")
        process = run.launch(2, save_steps=0)
        run.reaches(50)
        pids = pids_of(run)
        for number, pause in ((signal.SIGTERM, 0.02), (signal.SIGTERM, 0.02), (signal.SIGUSR1, 0.0)):
            for pid in pids.values():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            time.sleep(pause)
        stops(run, process)
        check(len(run.checkpoints()) == 1, f"checkpoints: {run.checkpoints()}")
        goes_on(run)

    def C090SignalDuringTheLastUpdate(self):
        """The run finishes: there is nothing left to come back for."""
        run = Run("c090")
        process = run.launch(2, global_batch_size=600, micro_batch_size=1, max_steps=3, warmup_steps=0, save_steps=0)
        run.reaches(2)  # the third step of 600 micro-batches is going on
        send(run, signal.SIGTERM)
        check(process.wait(60) == 0, "exit code is not 0")
        check(run.checkpoints() == [3] and (run.folder / "DONE").exists(), f"checkpoints: {run.checkpoints()}")

    def C093ErrorOnOneRank(self):
        """Rank 1 alone does not find its data: all ranks end within seconds, with its message."""
        run = Run("c093")
        good = [str(TRAIN), *run.arguments()]
        bad = [option.replace("train.h5", "missing.h5") for option in good]
        start = time.monotonic()
        done = subprocess.run(["mpirun", "-n", "1", *good, ":", "-n", "1", *bad, ":", "-n", "1", *good],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 2, f"exit code {done.returncode}")
        check("missing.h5" in done.stderr, f"the message of rank 1 is not there: {done.stderr}")
        check(time.monotonic() - start < 20, "the job did not end within seconds")
        check(not run.checkpoints(), f"checkpoints: {run.checkpoints()}")

    def C095HardFailureWithoutAnySignal(self):
        """SIGKILL to one rank after step 37, saves every 10: the same command finds step 30 and appends to the log."""
        run = Run("c095")
        process = run.launch(2, save_steps=10, async_save="off")  # a save under way would make it step 20
        run.reaches(37)
        send(run, signal.SIGKILL, [1])
        check(process.wait(60) == 137, f"exit code {process.returncode}")
        saved = run.checkpoints()[-1]
        check(saved >= 30 and saved % 10 == 0, f"the newest checkpoint is of step {saved}")
        goes_on(run)
        check(f"after step {saved}" in run.log(), f"the second launch did not begin at step {saved}")


TESTS = {f"{group.__name__}.{name}": getattr(group(), name) for group in (Stops, Cases)
         for name in vars(group) if not name.startswith("_")}


def main():
    failed = []
    for name in sys.argv[1:] or TESTS:
        start = time.monotonic()
        try:
            TESTS[name]()
        except (Failure, OSError, IndexError, KeyError, subprocess.TimeoutExpired) as failure:
            failed.append(name)
            traceback.print_exc()
            print(f"FAILED {name}: {failure}")
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if failed:
        for log in sorted(training.WORK.glob("*.log")):
            if log.stat().st_mtime > START:
                print(f"--- {log}", *log.read_text(errors="replace").splitlines()[-60:], sep="\n")
    return 1 if failed else 0


START = time.time()
if __name__ == "__main__":
    sys.exit(main())
