"""The training that the tests interrupt, and what must be true of it afterwards.

One small run, always with the same options. It was done once undisturbed (`training.py BUILD`, a ctest fixture); every
test then does it again under some disturbance, and ends with the same bits.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", SOURCE / "build/release")).resolve()
WORK = BUILD / "tests/slurm/work"
BIN = BUILD / "bin"
TRAIN = (BIN / "lockstep-train").resolve()
SKIP = 77

MAX_STEPS = 150
SAVE_STEPS = 15
OPTIONS = {"train_data": WORK / "train.h5", "model": "mlp", "hidden_sizes": "128,128", "dropout": 0.2,
           "optimizer": "adamw", "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 10, "global_batch_size": 60, "micro_batch_size": 2,
           "max_steps": MAX_STEPS, "seed": 7, "save_steps": SAVE_STEPS, "log_steps": 50}

# Virtual nodes are one machine, and tests run as root in containers.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMP_NUM_THREADS": "1"}
os.environ.update(ENVIRONMENT)


class Failure(Exception):
    """Something that must be true is not."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def wait_for(what, condition, seconds=240.0):
    """Polls until condition() is true; its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        check(time.monotonic() < end, f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)


class Run:
    """One run's folder: its checkpoints, its metrics, the log of all its launches."""

    def __init__(self, name, folder=None):
        self.folder = folder or WORK / name
        self.log_file = WORK / f"{name}.log"
        self.options = {**OPTIONS, "checkpoint_dir": self.folder}
        if folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.log_file.unlink(missing_ok=True)

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def metrics(self):
        """The steps in metrics.jsonl, in the file's order; a line that is being written does not count."""
        file = self.folder / "metrics.jsonl"
        steps = []
        if file.exists():
            for line in file.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    entry = json.loads(line)
                    if "lr" in entry:
                        steps.append(entry["step"])
        return steps

    def reaches(self, step, seconds=240.0):
        """Waits until so many steps were taken."""
        wait_for(f"step {step} of {self.folder.name}", lambda: self.metrics()[-1:] >= [step], seconds)

    def checkpoints(self):
        """The steps of the whole checkpoints, ascending."""
        return sorted(int(found.group(1)) for found in
                      (re.fullmatch(r"\D*0*(\d+)\.h5", file.name) for file in self.folder.glob("*.h5")) if found)

    def newest_checkpoint(self):
        step = self.checkpoints()[-1]
        return next(file for file in self.folder.glob("*.h5") if re.fullmatch(rf"\D*0*{step}\.h5", file.name))

    def arguments(self, **options):
        """The command line of the run, with some options added or replaced."""
        return [word for name, value in {**self.options, **options}.items()
                for word in ("--" + name.replace("_", "-"), str(value))]

    def launch(self, ranks=2, **options):
        """Starts mpirun. Signals wait until the program takes them; the log is appended to: as the job scripts do."""
        with open(self.log_file, "ab") as log:
            return subprocess.Popen(["mpirun", "-n", str(ranks), "env", "--block-signal=TERM,USR1,USR2", str(TRAIN),
                                     *self.arguments(**options)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def finish(self, ranks=2, code=0, seconds=240.0, **options):
        """Runs a launch to its end."""
        status = self.launch(ranks, **options).wait(seconds)
        check(status == code, f"a launch on {ranks} ranks ended with {status} instead of {code}")

    def equals_the_undisturbed(self):
        """The final state has the same bits, each step was logged once, and DONE says so."""
        undisturbed = Run("undisturbed", WORK / "undisturbed")
        difference = subprocess.run([str(BIN / "lockstep-checkpoint"), "diff", str(undisturbed.newest_checkpoint()),
                                     str(self.newest_checkpoint())], capture_output=True, text=True, check=False)
        check(difference.returncode == 0, f"not the bits of the undisturbed run:\n{difference.stdout}")
        check(self.metrics() == list(range(1, MAX_STEPS + 1)), f"metrics.jsonl has the steps {self.metrics()}")
        check((self.folder / "DONE").exists(), "there is no DONE")
        digests = [re.findall(r"^digest +(\w+)", run.log(), re.MULTILINE)[-1:] for run in (undisturbed, self)]
        check(digests[0] and digests[0] == digests[1], f"the digests differ: {digests}")

    def print_log(self):
        print(f"--- {self.log_file}", *self.log().splitlines()[-60:], sep="\n")


def pids_of(run):
    """The processes of a run's ranks that live now, by rank."""
    found = {}
    for proc in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if proc.name.isdigit() and os.readlink(proc / "exe") == str(TRAIN):
                if str(run.folder).encode() in (proc / "cmdline").read_bytes().split(b"\0"):
                    variables = (proc / "environ").read_bytes()
                    rank = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMIX_RANK)=(\d+)", variables)
                    found[int(rank.group(1))] = int(proc.name)
    return found


def import_images(folder, limit):
    """Makes train.h5 and test.h5 of so many images each; whether there were any to take."""
    importer = str(BIN / "import-fashion-mnist")
    return subprocess.run([importer, "--out", str(folder), "--limit", str(limit)], check=False).returncode == 0


def main():
    """Makes the data and the undisturbed run, on one rank."""
    if not TRAIN.exists():
        print(f"skipped: {TRAIN} is not built")
        return SKIP
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    if not import_images(WORK, 600):
        print("skipped: there is no Fashion-MNIST to train on (apt-get install dataset-fashion-mnist)")
        return SKIP
    run = Run("undisturbed")
    try:
        run.finish(ranks=1)
        run.equals_the_undisturbed()
    except Failure as failure:
        print(failure)
        run.print_log()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
