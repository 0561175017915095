#!/usr/bin/env python3
"""What a cluster does to a training job, and that the run does not mind.

    tests/slurm/cluster.py --nodes 4 python3 tests/slurm/cluster_test.py SCENARIO

Runs in a cluster of two nodes for each launcher; most scenarios do the same to a job under srun and to one under mpirun at
the same time. Each submits the shipped scripts from slurm/ and lets something happen.
"""
import os
import re
import signal
import subprocess
import sys
import threading
import time

import training
from training import MAX_STEPS, SAVE_STEPS, SOURCE, Failure, Run, check, pids_of, wait_for

LAUNCHERS = {"srun": ("train.sbatch", ["n1", "n2"]), "mpirun": ("train-mpirun.sbatch", ["n3", "n4"])}
TRIGGER_STEP = 30


def slurm(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout.strip()


class Job:
    """A run in the hands of Slurm."""

    def __init__(self, run, script, *sbatch_options, options=None, **environment):
        self.run = run
        settings = {"LOCKSTEP_SLURM_DIR": SOURCE / "slurm", "LOCKSTEP_TRAIN": training.TRAIN, "REQUEUE_BY": "slurm",
                    "RETRY_FAILURES_AFTER": "0", **environment}
        self.id = slurm("env", *(f"{name}={value}" for name, value in settings.items()), "sbatch", "--parsable",
                        f"--output={run.log_file}", *sbatch_options, SOURCE / "slurm" / script,
                        *run.arguments(**(options or {})))

    def facts(self):
        return dict(word.split("=", 1) for word in slurm("scontrol", "-o", "show", "job", self.id).split()
                    if "=" in word)

    def ends(self, state, seconds=300.0):
        """Waits until the job is over and does not come back; it must have ended in `state`."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        facts = wait_for(f"the end of job {self.id}",
                         lambda: (found := self.facts())["JobState"] in over and found, seconds)
        check(facts["JobState"] == state, f"job {self.id} is {facts['JobState']} with {facts['ExitCode']}")
        return facts


def submit(launcher, scenario, *sbatch_options, options=None, **environment):
    script, nodes = LAUNCHERS[launcher]
    return Job(Run(f"{scenario}-{launcher}"), script, "--nodes=2", "--ntasks-per-node=1",
               f"--nodelist={','.join(nodes)}", *sbatch_options, options=options, **environment)


def resumed_steps(run):
    """The step at which each launch but the first went on."""
    return [int(step) for step in re.findall(r"^resumed .* after step (\d+)", run.log(), re.MULTILINE)]


def completes_after_one_restart(job, loses="nothing"):
    """The job came back by itself, went on at the right step, and ended with the undisturbed run's bits."""
    facts = job.ends("COMPLETED")
    check(facts["Restarts"] == "1", f"{facts['Restarts']} restarts instead of one")
    steps = resumed_steps(job.run)
    check(len(steps) == 1, f"resumed at {steps}")
    # At a hard failure the newest save may still be under way: then the one before it counts.
    least = TRIGGER_STEP if loses == "nothing" else TRIGGER_STEP - 2 * SAVE_STEPS
    check(least <= steps[0] < MAX_STEPS, f"resumed at step {steps[0]}, was disturbed after {TRIGGER_STEP}")
    job.run.equals_the_undisturbed()


def requeue(launcher):
    """`scontrol requeue`: TERM to all ranks, KILL after KillWait."""
    job = submit(launcher, "requeue")
    job.run.reaches(TRIGGER_STEP)
    slurm("scontrol", "requeue", job.id)
    completes_after_one_restart(job)


def preempt(launcher):
    """A job of a higher partition takes the nodes; GraceTime is the cluster's. Many saves set the pace."""
    job = submit(launcher, "preempt", options={"save_steps": 2, "save_total_limit": 2})
    job.run.reaches(TRIGGER_STEP)
    nodes = LAUNCHERS[launcher][1]
    slurm("sbatch", "--partition=high", "--nodes=2", f"--nodelist={','.join(nodes)}", "--exclusive",
          "--output=/dev/null", "--wrap=true")
    completes_after_one_restart(job)


def warn(launcher):
    """USR1 to the batch shell alone, as `--signal=B:USR1@120` sends it before the time limit."""
    job = submit(launcher, "warn")
    job.run.reaches(TRIGGER_STEP)
    slurm("scancel", "--batch", "--signal=USR1", job.id)
    completes_after_one_restart(job)


def node_down(launcher):
    """One of the two nodes is lost."""
    job = submit(launcher, "node_down")
    job.run.reaches(TRIGGER_STEP)
    slurm("scontrol", "update", f"node={LAUNCHERS[launcher][1][1]}", "state=down", "reason=test")
    completes_after_one_restart(job, loses="since the save")


def killed_rank(launcher):
    """`kill -9` of a rank: its launcher ends the others, the script asks for another launch."""
    job = submit(launcher, "killed_rank")
    job.run.reaches(TRIGGER_STEP)
    os.kill(pids_of(job.run)[1], signal.SIGKILL)
    completes_after_one_restart(job, loses="since the save")


def killed_rank_is_not_retried(launcher):
    """The same at a site that does not want failed launches back."""
    job = submit(launcher, "killed_rank_is_not_retried", RETRY_FAILURES_AFTER="never")
    job.run.reaches(TRIGGER_STEP)
    os.kill(pids_of(job.run)[1], signal.SIGKILL)
    facts = job.ends("FAILED")
    check(facts["ExitCode"] == "137:0" and facts["Restarts"] == "0", f"{facts['ExitCode']}, {facts['Restarts']}")


def cancel(launcher):
    """A cancelled job saves, and does not come back, whoever requeues."""
    job = submit(launcher, "cancel", REQUEUE_BY="script")
    job.run.reaches(TRIGGER_STEP)
    slurm("scancel", job.id)
    facts = job.ends("CANCELLED")
    check(facts["Restarts"] == "0", f"{facts['Restarts']} restarts")
    check(job.run.checkpoints()[-1] >= TRIGGER_STEP, f"the newest checkpoint is of step {job.run.checkpoints()[-1]}")


def self_requeue(launcher):
    """A site without RequeueExit: the script calls `scontrol requeue`, at most MAX_RESTARTS times."""
    job = submit(launcher, "self_requeue", REQUEUE_BY="script", MAX_RESTARTS="1")
    job.run.reaches(TRIGGER_STEP)
    slurm("scancel", "--batch", "--signal=USR1", job.id)
    wait_for("the restart", lambda: len(resumed_steps(job.run)) == 1)
    job.run.reaches(resumed_steps(job.run)[0] + 20)
    slurm("scancel", "--batch", "--signal=USR1", job.id)
    facts = job.ends("FAILED")
    check(facts["ExitCode"] == "85:0" and facts["Restarts"] == "1", f"{facts['ExitCode']}, {facts['Restarts']}")
    check("restarts are the most" in job.run.log(), "the log does not say why the job does not come back")


def no_progress(launcher):
    """Every launch dies in its first save: the third one says 86 instead of trying again."""
    job = submit(launcher, "no_progress", options={"max_restarts_without_progress": 2, "save_steps": 1,
                                                   "inject": "crash@save:data,rank=1"})
    facts = job.ends("FAILED")
    check(facts["ExitCode"] == "86:0" and facts["Restarts"] == "2", f"{facts['ExitCode']}, {facts['Restarts']}")
    check("no progress: 2 launches in a row" in job.run.log(), "the log does not say why")


def other_ranks(_):
    """2 nodes x 2 ranks, then 1 x 3, then 2 x 1: a job for each, one run."""
    run = Run("other_ranks")
    for shape, until in ((("--nodes=2", "--ntasks-per-node=2"), 30), (("--nodes=1", "--ntasks-per-node=3"), 80)):
        job = Job(run, "train.sbatch", *shape)
        run.reaches(until)
        slurm("scancel", job.id)
        job.ends("CANCELLED")
    Job(run, "train.sbatch", "--nodes=2", "--ntasks-per-node=1").ends("COMPLETED")
    steps = resumed_steps(run)
    check(len(steps) == 2 and steps[0] >= 30 and steps[1] >= 80, f"resumed at {steps}")
    run.equals_the_undisturbed()


def time_limit(launcher):
    """A limit of a minute, never reached: under srun Slurm warns of it, under mpirun the run itself sees it come."""
    warned = launcher == "srun"
    job = submit(launcher, "time_limit", "--time=1", f"--signal=B:{'USR1@20' if warned else 'CONT@1'}",
                 options={"deadline_margin": 0 if warned else 25, "max_steps": 1000000, "save_steps": 0})
    wait_for("two restarts", lambda: int(job.facts()["Restarts"]) >= 2, 400)
    slurm("scancel", job.id)
    reason = "SIGUSR1 came" if warned else "the allocation ends in"
    check(job.run.log().count(reason) >= 2, f"the log does not say \"{reason}\" twice")
    check("TIME LIMIT" not in job.run.log(), "the limit was reached")


def c085_warning_of_the_batch_shell(launcher):
    """--signal=B:USR1 reaches the shell alone: the trainer is told within a second, and its 85 is the job's."""
    job = submit(launcher, "c085", "--no-requeue", REQUEUE_BY="nobody")
    job.run.reaches(TRIGGER_STEP)
    at = time.time()
    slurm("scancel", "--batch", "--signal=USR1", job.id)
    wait_for("the warning", lambda: "SIGUSR1" in job.run.log(), 20)
    check(time.time() - at < 5, f"the ranks heard of it after {time.time() - at:.1f} s")
    facts = wait_for("the end", lambda: (found := job.facts())["ExitCode"] == "85:0" and found, 30)
    check(facts["ExitCode"] == "85:0", facts["ExitCode"])
    slurm("scancel", job.id)


def c092_job_arrays(_):
    """Each task has its folder, and is requeued alone, by the script."""
    run = Run("c092")
    del run.options["seed"]  # the script's
    log = run.log_file.with_suffix("")
    array = Job(run, "train-array.sbatch", "--array=1-2", "--ntasks-per-node=1", f"--output={log}-%a.log",
                REQUEUE_BY="script")
    tasks = []
    for index in (1, 2):
        task = Run(f"c092-{index}", run.folder / f"task-{index}")
        task.log_file = log.with_name(f"{log.name}-{index}.log")
        tasks.append(task)
        task.reaches(TRIGGER_STEP)
    slurm("scancel", "--batch", "--signal=USR1", f"{array.id}_2")  # the task whose job id is the array's own

    def state(index):
        facts = slurm("scontrol", "-o", "show", "job", f"{array.id}_{index}")
        return re.search(r"JobState=(\S+)", facts).group(1), re.search(r"Restarts=(\d+)", facts).group(1)

    wait_for("the tasks' end", lambda: {state(1)[0], state(2)[0]} == {"COMPLETED"})
    check((state(1)[1], state(2)[1]) == ("0", "1"), f"restarts: {state(1)[1]} and {state(2)[1]}")
    for task in tasks:
        check(task.metrics() == list(range(1, MAX_STEPS + 1)), f"{task.folder.name} has the steps {task.metrics()}")


SCENARIOS = {function.__name__: function for function in (
    requeue, preempt, warn, node_down, killed_rank, killed_rank_is_not_retried, cancel, self_requeue, no_progress,
    other_ranks, time_limit, c085_warning_of_the_batch_shell, c092_job_arrays)}
WITHOUT_LAUNCHER = (other_ranks, c092_job_arrays)


def try_scenario(scenario, launcher, failures):
    start = time.time()
    try:
        scenario(launcher)
    except (Failure, OSError, KeyError) as failure:
        failures.append(f"{scenario.__name__} under {launcher}: {failure!r}")
    print(f"{scenario.__name__} under {launcher}: {time.time() - start:.1f} s", flush=True)


def main():
    scenario = SCENARIOS[sys.argv[1]]
    launchers = ["srun"] if scenario in WITHOUT_LAUNCHER else list(LAUNCHERS)
    failures = []
    threads = [threading.Thread(target=try_scenario, args=(scenario, launcher, failures)) for launcher in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        for log in sorted(training.WORK.glob(f"{scenario.__name__.split('_')[0]}*.log")):
            print(f"--- {log}", *log.read_text(errors="replace").splitlines()[-60:], sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
