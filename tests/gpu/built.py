"""What was built, and with which LibTorch: in a build folder, or unpacked from a bundle."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import machine

PROGRAMS = ["lockstep-train", "lockstep-checkpoint", "step_bench", "device_test", "gpu_device_test"]
PLUGIN = "liblockstep_cuda.so"


@dataclass
class Built:
    programs: Path
    mpirun: str
    libtorch: str  # version, "2.11.0+cu130"
    data: str = ""  # a small data set; none: import-fashion-mnist makes one
    libraries: Path | None = None  # that a bundle brings

    def real(self, name):
        """The program itself, where a bundle starts it through a script."""
        return (self.programs.parent / "libexec" if self.libraries else self.programs) / name


def of_build(build):
    return Built(build / "bin", "mpirun", machine.torch_version(str(torch_of(build))))


def of_bundle(root):
    facts = json.loads((root / "bundle.json").read_text(encoding="utf-8"))
    return Built(root / "bin", str(root / "bin/mpirun"), facts["libtorch"], str(root / "data/train.h5"), root / "lib")


def torch_of(build):
    """The folder of the LibTorch that `build` was configured with."""
    found = re.search(r"^LOCKSTEP_TORCH_CPU:FILEPATH=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return Path(found.group(1)).parent.parent
