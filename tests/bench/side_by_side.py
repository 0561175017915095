"""Compares steps of Lockstep with steps of Python's DistributedDataParallel, in interleaved pairs of short processes.

All sides: the same model, initial weights, data and LibTorch; AdamW, fused; one thread a rank. On the CPU two ranks,
each pinned to a core; on devices one rank each, and Lockstep also with CUDA graphs. Within a pair the sides run one
after the other, in changing order; what is reported is the median of the pairs' ratios, so that a machine that slows
down for a while slows all. First steps are not timed. The ratio of CPU time is steadier on a busy machine, and leaves
out what a side waits for.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sides import Side, load_at_start, write_json


@dataclass(frozen=True)
class Workload:
    model: str
    samples_per_rank: int
    warmup_steps: int  # not timed
    steps: int
    goal: float | None = None  # how many times faster than DistributedDataParallel a step is meant to be


LARGE_MLP = "mlp:784-" + 5 * "2048-" + "10"
WORKLOADS = {
    "cpu": {
        "small-mlp": Workload("mlp:784-256-256-10", samples_per_rank=64, warmup_steps=50, steps=600, goal=3.0),
        "large-mlp": Workload(LARGE_MLP, samples_per_rank=64, warmup_steps=5, steps=20, goal=1.3),
        "cnn": Workload("cnn", samples_per_rank=32, warmup_steps=10, steps=60, goal=1.2),
    },
    "cuda": {
        "small-mlp": Workload("mlp:784-256-256-10", samples_per_rank=64, warmup_steps=50, steps=600),
        "large-mlp": Workload(LARGE_MLP, samples_per_rank=1024, warmup_steps=30, steps=200),
        "cnn": Workload("cnn", samples_per_rank=256, warmup_steps=30, steps=200),
    },
}
SAME_LOSS = {"cpu": 1e-5, "cuda": 1e-3}  # of the first batch, relative


class Comparison:
    """The pairs of one workload, and the figures of the report."""

    def __init__(self, name, device, sides, folder):
        self.name = name
        self.workload = WORKLOADS[device][name]
        self.tolerance = SAME_LOSS[device]
        self.sides = sides
        self.device = device
        self.weights = folder / f"{name}.weights"
        self.pairs = []
        subprocess.run([*sides["python"].command, "--model", self.workload.model, "--weights", str(self.weights),
                        "--export-weights"], check=True)

    def run_pair(self):
        first = len(self.pairs) % len(self.sides)
        names = list(self.sides)
        pair = {name: self.sides[name].run(*self.arguments(name)) for name in names[first:] + names[:first]}
        self.pairs.append(pair)
        expected = pair["python"]["first_loss"]
        for name, report in pair.items():
            if abs(report["first_loss"] - expected) > self.tolerance * abs(expected):
                sys.exit(f"{self.name}: the sides do not compute the same: the loss before the first step is "
                         f"{expected} in Python and {report['first_loss']} in {name}.")
        print(f"  {self.name} {len(self.pairs)}: " +
              ", ".join(f"{ratio(pair, name):.2f}" for name in names if name != "python"), file=sys.stderr, flush=True)

    def arguments(self, name):
        workload = self.workload
        num_samples = max(4096, 4 * workload.samples_per_rank * self.sides[name].num_ranks)
        return ("--model", workload.model, "--device", self.device, "--samples-per-rank", workload.samples_per_rank,
                "--num-samples", num_samples, "--steps", workload.steps, "--warmup-steps", workload.warmup_steps,
                "--weights", self.weights)

    def figures(self):
        ratios = [ratio(pair, "lockstep") for pair in self.pairs]
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios
        figures = {
            "workload": self.name, "model": self.workload.model, "samples_per_rank": self.workload.samples_per_rank,
            "pairs": len(self.pairs), "python_ms": self.milliseconds("python"),
            "lockstep_ms": self.milliseconds("lockstep"), "ratio": quartiles[1], "lower_quartile": quartiles[0],
            "upper_quartile": quartiles[2], "goal": self.workload.goal,
            "cpu_ratio": statistics.median(ratio(pair, "lockstep", "cpu_seconds_per_step") for pair in self.pairs),
        }
        if "lockstep with CUDA graphs" in self.sides:
            figures["graph_ms"] = self.milliseconds("lockstep with CUDA graphs")
            figures["graph_ratio"] = statistics.median(ratio(pair, "lockstep with CUDA graphs") for pair in self.pairs)
        messages = {message for pair in self.pairs for side in pair.values() for message in side.get("messages", [])}
        return {**figures, "messages": sorted(messages)}

    def milliseconds(self, side):
        return 1e3 * statistics.median(pair[side]["seconds_per_step"] for pair in self.pairs)


def ratio(pair, side, figure="seconds_per_step"):
    return pair["python"][figure] / pair[side][figure]


def make_sides(options):
    binding = "core" if options.device == "cpu" else "none"
    launcher = [options.mpirun, "-n", str(options.ranks), "--bind-to", binding]
    python = [sys.executable, str(Path(__file__).with_name("ddp.py"))]
    if options.device == "cpu":
        return {"python": Side(python, launcher, options.ranks),
                "lockstep": Side([options.step_bench], launcher, options.ranks)}
    ours = launcher if options.ranks > 1 else ()
    return {"python": Side(python, (), options.ranks), "lockstep": Side([options.step_bench], ours, options.ranks),
            "lockstep with CUDA graphs": Side([options.step_bench, "--cuda-graph"], ours, options.ranks)}


def run_pairs(comparisons, num_pairs, time_limit):
    """Rounds of one pair of each workload, no more than fit into the time."""
    start = time.monotonic()
    longest = 0.0
    for _ in range(num_pairs):
        begin = time.monotonic()
        if time_limit and longest and begin - start + longest > time_limit:
            break
        for comparison in comparisons:
            comparison.run_pair()
        longest = max(longest, time.monotonic() - begin)


def print_table(rows):
    line = "{:<11}{:>13}{:>13}{:>12}{:>8}  {:<12}{:>5}{:>11}{:>14}"
    print(line.format("workload", "samples/rank", "Python DDP", "Lockstep", "ratio", "quartiles", "goal", "CPU ratio",
                      "CUDA graphs" if "graph_ms" in rows[0] else "").rstrip())
    for row in rows:
        graphs = f"{row['graph_ms']:.2f} ms" if "graph_ms" in row else ""
        print(line.format(row["workload"], row["samples_per_rank"], f"{row['python_ms']:.2f} ms",
                          f"{row['lockstep_ms']:.2f} ms", f"{row['ratio']:.2f}",
                          f"{row['lower_quartile']:.2f}-{row['upper_quartile']:.2f}", row["goal"] or "-",
                          f"{row['cpu_ratio']:.2f}", graphs).rstrip())
        for message in row["messages"]:
            print(f"  {message}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-bench", required=True, help="the program built from step_bench.cpp")
    parser.add_argument("--device", choices=WORKLOADS, default="cpu")
    parser.add_argument("--ranks", type=int, help="default: 2 on the CPU, 1 on devices")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--time-limit", type=float, help="seconds: no more pairs than fit")
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS["cpu"], default=list(WORKLOADS["cpu"]))
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2 (quartiles are taken over the pairs)")
    if options.ranks is None:
        options.ranks = 2 if options.device == "cpu" else 1

    load = load_at_start()
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(options)
        comparisons = [Comparison(name, options.device, sides, Path(folder)) for name in options.workload]
        run_pairs(comparisons, options.pairs, options.time_limit)
    rows = [comparison.figures() for comparison in comparisons]
    print_table(rows)
    if options.json:
        write_json(options.json, load, rows, device=options.device, ranks=options.ranks)


if __name__ == "__main__":
    main()
