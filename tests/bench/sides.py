"""What the comparisons share: programs that run on some ranks, the first of which prints a line of JSON at its end."""

import json
import os
import resource
import socket
import subprocess
import sys
import time

TWO_PINNED_RANKS = ("mpirun", "-n", "2", "--bind-to", "core")


class Side:
    """A program to compare; run() starts it on all ranks and gives rank 0's report."""

    def __init__(self, command, launcher=TWO_PINNED_RANKS, num_ranks=2):
        self.command = command
        self.launcher = launcher  # none: every rank is started here, with RANK and WORLD_SIZE set
        self.num_ranks = num_ranks

    def run(self, *arguments):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo",
                           OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        command = [*self.launcher, *self.command, *map(str, arguments)]
        processes = []
        for rank in range(1 if self.launcher else self.num_ranks):
            of_rank = {} if self.launcher else {"RANK": str(rank), "WORLD_SIZE": str(self.num_ranks)}
            processes.append(subprocess.Popen(command, env={**environment, **of_rank}, stdout=subprocess.PIPE,
                                              text=True))
        try:
            output = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(process.returncode for process in processes):
            sys.exit(f"{' '.join(command)} ended with exit code {[process.returncode for process in processes]}.")
        return json.loads(output[0].splitlines()[-1])


class OtherWork:
    """What share of the machine's cores others have used since this was made, and not the programs started here."""

    def __init__(self):
        self.start = self.now()

    def share(self):
        (time_then, busy_then, own_then), (time_now, busy_now, own_now) = self.start, self.now()
        others = (busy_now - busy_then) - (own_now - own_then)
        return max(0.0, others / (time_now - time_then) / os.cpu_count())

    @staticmethod
    def now():
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = (int(field) for field in file.readline().split()[1:4])
        own = sum(used.ru_utime + used.ru_stime
                  for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        return time.monotonic(), (user + nice + system) / os.sysconf("SC_CLK_TCK"), own


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load_at_start():
    """The machine's load, and a warning where others cause it."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"Other work is running here (load {load:.1f}): the figures are rough.", file=sys.stderr)
    return load


def write_json(path, load, rows, **facts):
    path.write_text(json.dumps({**facts, "load_at_start": load, "rows": rows}, indent=2) + "\n", encoding="utf-8")
