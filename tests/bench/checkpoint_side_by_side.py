"""Compares saving a checkpoint with the disk itself and with PyTorch, in interleaved rounds of short processes.

All sides: two ranks, each pinned to a core, and as many bytes of state: weights and two moments, which PyTorch holds on
every rank as under DistributedDataParallel. A save has ended when it is durable. A round measures every side once, and
what is reported is the median of the rounds' ratios, since a disk is not as fast in one minute as in the next. First
saves are not timed. A round in which other programs used the machine is measured again. "stop" is for how long a save
that goes on in the background stops the run: there async_save; here its start, all its further moves, and what is left
of its copy after the computation of a step, for which the run waits before it changes its state. By how much the copy
and the writing beside it prolong that computation, on a core that both share, is told below the table. In the first
round h5diff compares the files of the two writers.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sides import OtherWork, Side, load_at_start, write_json

MOST_OTHER_WORK = 0.03  # of the machine's cores, in a round that counts


@dataclass(frozen=True)
class Comparison:
    what: str
    peer: str  # what of the peer is compared with
    ours: str  # what of ours
    goal: float | None = None  # of peer / ours


COMPARISONS = (
    Comparison("raw parallel write", "raw_write", "direct_save", goal=0.75),
    Comparison("collective writer", "collective_save", "direct_save"),
    Comparison("torch.save, fsync", "torch_save", "direct_save", goal=2.0),
    Comparison("DCP save", "dcp_save", "direct_save"),
    Comparison("DCP async_save: stop", "dcp_stop", "async_stop", goal=15.0),
)


def check_same_file(folder):
    """Both writers' newest files hold the same, but for when and where they were written."""
    files = [next((folder / writer).glob("step-*.h5")) for writer in ("direct", "collective")]
    subprocess.run(["h5diff", "--exclude-path", "/provenance/launches", *files], check=True)
    print(f"  h5diff: {files[0].relative_to(folder)} and {files[1].relative_to(folder)} hold the same",
          file=sys.stderr, flush=True)


def measure_round(sides, state, folder):
    """One report with the figures of all sides."""
    report = {}
    for side in sides:
        place = folder / "saves"
        place.mkdir()
        figures = side.run(place, *state)
        if figures["bytes"] != report.get("bytes", figures["bytes"]):
            sys.exit(f"the two sides do not save the same: {report['bytes']} bytes and {figures['bytes']}.")
        report.update(figures)
        if (place / "direct").exists() and not (folder / "compared").exists():
            check_same_file(place)
            (folder / "compared").touch()
        shutil.rmtree(place)
    return report


def measure(sides, state, num_rounds, folder):
    """The reports of as many rounds as nobody disturbed, or, on a machine with much other work, of those there were."""
    rounds = []
    for attempt in range(2 * num_rounds):
        other_work = OtherWork()
        report = measure_round(sides if attempt % 2 == 0 else sides[::-1], state, folder)
        share = other_work.share()
        counts = share < MOST_OTHER_WORK or 2 * num_rounds - attempt <= num_rounds - len(rounds)
        print(f"  {len(rounds) + 1}/{num_rounds}: " + ", ".join(
            f"{comparison.peer}/{comparison.ours} {ratio(report, comparison):.2f}" for comparison in COMPARISONS) +
            f" (other work: {share:.1%}{'' if counts else ', again'})", file=sys.stderr, flush=True)
        if counts:
            rounds.append(dict(report, other_work=share))
        if len(rounds) == num_rounds:
            break
    return rounds


def ratio(report, comparison):
    return report[comparison.peer] / report[comparison.ours]


def row(comparison, rounds):
    lower, middle, upper = statistics.quantiles((ratio(one, comparison) for one in rounds), n=4, method="inclusive")
    return {"what": comparison.what, "rounds": len(rounds), "bytes": rounds[0]["bytes"],
            "peer_ms": 1e3 * statistics.median(one[comparison.peer] for one in rounds),
            "lockstep_ms": 1e3 * statistics.median(one[comparison.ours] for one in rounds),
            "ratio": middle, "lower_quartile": lower, "upper_quartile": upper, "goal": comparison.goal}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint-bench", required=True, help="the program built from checkpoint_bench.cpp")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk in question (default: where temporary files go)")
    parser.add_argument("--tensors", type=int, default=124, help="tensors of each of weights and two moments")
    parser.add_argument("--elements", type=int, default=325_000, help="elements of the first; each has one more")
    parser.add_argument("--json", type=Path, help="write the figures of all rounds there, too")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2 (quartiles are taken over the rounds)")

    load = load_at_start()
    lockstep = Side([options.checkpoint_bench])
    python = Side([sys.executable, str(Path(__file__).with_name("checkpoint_peers.py"))])
    state = ["--tensors", options.tensors, "--elements", options.elements]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rounds = measure([lockstep, python], state, options.rounds, Path(folder))
    rows = [row(comparison, rounds) for comparison in COMPARISONS]

    print(f"{rows[0]['bytes'] / 1e6:.0f} MB, medians of {options.rounds} rounds, of which others disturbed "
          f"{sum(one['other_work'] >= MOST_OTHER_WORK for one in rounds)}; ratio: peer / Lockstep, above 1 is faster here")
    line = "{:<24}{:>12}{:>12}{:>8}  {:<12}{:>5}"
    print(line.format("peer", "its time", "Lockstep", "ratio", "quartiles", "goal"))
    for one in rows:
        print(line.format(one["what"], f"{one['peer_ms']:.1f} ms", f"{one['lockstep_ms']:.1f} ms",
                          f"{one['ratio']:.2f}", f"{one['lower_quartile']:.2f}-{one['upper_quartile']:.2f}",
                          one["goal"] or "-"))
    alone, slowdown = (1e3 * statistics.median(one[key] for one in rounds) for key in ("compute_alone", "async_slowdown"))
    print(f"beside a save in the background a computation of {alone:.1f} ms on the same cores takes {slowdown:.1f} ms longer")
    if options.json:
        write_json(options.json, load, rows, rounds=rounds)


if __name__ == "__main__":
    main()
