"""Compares steps of Lockstep with steps of Python's DistributedDataParallel, in interleaved pairs of short processes.

Both sides: the same model, initial weights, data and LibTorch; AdamW, fused; two ranks, each pinned to a core; one
thread a rank. Within a pair the two run one after the other, in alternating order; what is reported is the median of
the pairs' ratios, so that a machine that slows down for a while slows both. First steps are not timed. The ratio of
CPU time is steadier on a busy machine, and leaves out what a side waits for.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NUM_RANKS = 2


@dataclass(frozen=True)
class Workload:
    model: str
    samples_per_rank: int
    warmup_steps: int  # not timed
    steps: int
    goal: float  # how many times faster than DistributedDataParallel a step is meant to be


LARGE_MLP = "mlp:784-" + 5 * "2048-" + "10"
WORKLOADS = {
    "small-mlp": Workload("mlp:784-256-256-10", samples_per_rank=64, warmup_steps=50, steps=600, goal=3.0),
    "large-mlp": Workload(LARGE_MLP, samples_per_rank=64, warmup_steps=5, steps=20, goal=1.3),
    "cnn": Workload("cnn", samples_per_rank=32, warmup_steps=10, steps=60, goal=1.2),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Side:
    """One of the two programs; run() starts it on all ranks and gives its report."""

    def __init__(self, command):
        self.command = command

    def run(self, workload, weights):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo",
                           OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        command = ["mpirun", "-n", str(NUM_RANKS), "--bind-to", "core", *self.command, "--model", workload.model,
                   "--samples-per-rank", str(workload.samples_per_rank), "--steps", str(workload.steps),
                   "--warmup-steps", str(workload.warmup_steps), "--weights", str(weights)]
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        return json.loads(output.stdout.splitlines()[-1])


def measure(name, workload, python, lockstep, num_pairs, folder):
    """Runs the pairs of one workload and gives the figures of the report."""
    weights = folder / f"{name}.weights"
    subprocess.run([*python.command, "--model", workload.model, "--weights", str(weights), "--export-weights"],
                   check=True)
    pairs = []
    for i in range(num_pairs):
        sides = [python, lockstep] if i % 2 == 0 else [lockstep, python]
        reports = {side: side.run(workload, weights) for side in sides}
        pairs.append((reports[python], reports[lockstep]))
        if not same_loss(*pairs[-1]):
            sys.exit(f"{name}: the two sides do not compute the same: the loss before the first step is "
                     f"{pairs[-1][0]['first_loss']} in Python and {pairs[-1][1]['first_loss']} here.")
        print(f"  {name} {i + 1}/{num_pairs}: {ratio(pairs[-1]):.2f}", file=sys.stderr, flush=True)
    ratios = [ratio(pair) for pair in pairs]
    cpu_ratios = [ratio(pair, "cpu_seconds_per_step") for pair in pairs]
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "workload": name, "model": workload.model, "samples_per_rank": workload.samples_per_rank, "pairs": num_pairs,
        "python_ms": 1e3 * statistics.median(pair[0]["seconds_per_step"] for pair in pairs),
        "lockstep_ms": 1e3 * statistics.median(pair[1]["seconds_per_step"] for pair in pairs),
        "ratio": middle, "lower_quartile": lower, "upper_quartile": upper, "goal": workload.goal,
        "cpu_ratio": statistics.median(cpu_ratios),
    }


def ratio(pair, figure="seconds_per_step"):
    python_report, lockstep_report = pair
    return python_report[figure] / lockstep_report[figure]


def same_loss(python_report, lockstep_report):
    return abs(python_report["first_loss"] - lockstep_report["first_loss"]) <= 1e-5 * abs(python_report["first_loss"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-bench", required=True, help="the program built from step_bench.cpp")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2 (quartiles are taken over the pairs)")

    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"Other work is running here (load {load:.1f}): the figures are rough.", file=sys.stderr)
    python = Side([sys.executable, str(Path(__file__).with_name("ddp.py"))])
    lockstep = Side([options.step_bench])
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, WORKLOADS[name], python, lockstep, options.pairs, Path(folder))
                for name in options.workload]

    line = "{:<11}{:>13}{:>13}{:>12}{:>8}  {:<12}{:>5}{:>11}"
    print(line.format("workload", "samples/rank", "Python DDP", "Lockstep", "ratio", "quartiles", "goal",
                      "CPU ratio"))
    for row in rows:
        print(line.format(row["workload"], row["samples_per_rank"], f"{row['python_ms']:.2f} ms",
                          f"{row['lockstep_ms']:.2f} ms", f"{row['ratio']:.2f}",
                          f"{row['lower_quartile']:.2f}-{row['upper_quartile']:.2f}", row["goal"],
                          f"{row['cpu_ratio']:.2f}"))
    if options.json:
        options.json.write_text(json.dumps({"load_at_start": load, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
