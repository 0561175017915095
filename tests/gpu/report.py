"""The report of tests/gpu.sh: what was checked on a machine, what came of it, and the machine itself."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from enum import Enum

NO_DEVICE = 77  # exit code: the machine has no GPU that can be used


class Outcome(str, Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass
class Check:
    name: str
    outcome: Outcome
    reason: str = ""  # a sentence; empty only for what passed
    seconds: float = 0.0
    figures: dict = field(default_factory=dict)

    def __post_init__(self):
        if not self.reason and self.outcome != Outcome.PASSED:
            raise ValueError(f"{self.name} {self.outcome.value}, and no reason is given")


class Report:
    """Written anew after every check, so that a run that is broken off leaves what it has found."""

    def __init__(self, path, device, time_limit_seconds):
        self.path = path
        self.device = device  # "cuda"; "cpu" where it stood in
        self.time_limit_seconds = time_limit_seconds
        self.machine = {}
        self.checks = []
        self.has_device = True

    def add(self, check):
        if any(other.name == check.name for other in self.checks):
            raise ValueError(f"{check.name} is reported twice")
        self.checks.append(check)
        self.write()

    @property
    def outcome(self):
        if not self.has_device:
            return "no device"
        if any(check.outcome == Outcome.FAILED for check in self.checks):
            return "failed"
        return "passed" if any(check.outcome == Outcome.PASSED for check in self.checks) else "nothing checked"

    def exit_code(self):
        return {"passed": 0, "no device": NO_DEVICE}.get(self.outcome, 1)

    def write(self):
        if not self.path:
            return
        content = {"format": 1, "device": self.device, "outcome": self.outcome, "machine": self.machine,
                   "time_limit_seconds": self.time_limit_seconds,
                   "seconds": round(sum(check.seconds for check in self.checks), 1),
                   "checks": [{**asdict(check), "seconds": round(check.seconds, 1)} for check in self.checks]}
        folder = os.path.dirname(os.path.abspath(self.path))
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".report-", delete=False, encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, self.path)

    def line(self, check):
        return f"{check.outcome.value:<8}{check.name:<28}{check.seconds:6.1f} s" + (
            f"   {check.reason}" if check.reason else "")
