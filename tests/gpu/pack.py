"""Gathers what tests/gpu.sh needs on a machine without Open MPI, HDF5 and the like: the bundle of --pack.

    bin/        a script for each program, which starts it with the bundle's libraries
    libexec/    the programs, the plug-in beside them
    lib/        the libraries, and the plug-ins of Open MPI and PMIx
    share/      Open MPI's messages and settings
    data/       a small data set
    tests/, examples/environment.sh: as in the sources

LibTorch, CUDA, NCCL, and the C and C++ libraries are the other machine's.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import built
import machine

ROOT = Path(__file__).resolve().parent.parent.parent

# What every machine has, and what comes with LibTorch and the driver.
NOT_PACKED = re.compile(
    r"^(ld-linux|linux-vdso|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libutil\.so|libresolv\.so|libanl\.so"
    r"|libstdc\+\+\.so|libgcc_s\.so|libgomp\.so|libtorch|libc10|libshm\.so|libcaffe2|libnv|libnccl"
    r"|libcu(da|pti|blas|dnn|fft|file|rand|solver|sparse))")

# Plug-ins of Open MPI for networks and launchers that a single machine is without.
NOT_NEEDED = re.compile(r"ofi|ucx|psm|openib|verbs|usnic|portals|monitoring|slurm|flux|jsm|gridengine|tm\.so|lsf|alps"
                        r"|singularity|memheap|spml|sshmem|scoll|oshmem|dbg|romio")

SCRIPT = """#!/bin/sh
# Starts the program of this name with the libraries of this bundle. LOCKSTEP_TORCH_LIBRARIES: where LibTorch's are.
bundle=$(cd "$(dirname "$0")/.." && pwd)
case :$LD_LIBRARY_PATH: in
  *:$bundle/lib:*) ;;
  *) LD_LIBRARY_PATH=$bundle/lib:$LOCKSTEP_TORCH_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ;;
esac
export LD_LIBRARY_PATH
export OPAL_PREFIX="$bundle" OPAL_BINDIR="$bundle/bin" OPAL_LIBDIR="$bundle/lib" OPAL_PKGLIBDIR="$bundle/lib/openmpi"
export OPAL_PKGDATADIR="$bundle/share/openmpi" OPAL_SYSCONFDIR="$bundle/share/openmpi"
export PMIX_INSTALL_PREFIX="$bundle" PMIX_LIBDIR="$bundle/lib" PMIX_PKGLIBDIR="$bundle/lib/pmix"
export PMIX_PKGDATADIR="$bundle/share/pmix" PMIX_DATADIR="$bundle/share"
export OMPI_MCA_plm=isolated  # starts processes here alone, and needs no ssh
export PATH="$bundle/bin:$PATH"
exec "$bundle/libexec/${0##*/}" "$@"
"""

PROGRAM_FILES = [*built.PROGRAMS, built.PLUGIN]


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def libraries_of(file):
    """Files of all libraries that `file` needs, but those of NOT_PACKED, by the names under which they are wanted."""
    found = {}
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", output_of("ldd", str(file)), re.MULTILINE):
        if not NOT_PACKED.match(name):
            found[name] = path
    return found


def open_mpi_folders():
    """bindir, pkglibdir, pkgdatadir, sysconfdir of the Open MPI that the programs were built with."""
    folders = {}
    for line in output_of("ompi_info", "--parsable", "--path", "all").splitlines():
        kind, name, path = (line.split(":", 2) + ["", ""])[:3]
        if kind == "path":
            folders[name] = Path(path)
    return folders


class Bundle:
    def __init__(self, folder):
        self.folder = folder
        self.libraries = {}
        for name in ("bin", "libexec", "lib/openmpi", "lib/pmix", "share", "data"):
            (folder / name).mkdir(parents=True)

    def add_program(self, file, name=None, needs_script=True):
        name = name or file.name
        target = self.folder / "libexec" / name
        shutil.copy2(os.path.realpath(file), target)
        self.strip(target)
        self.libraries.update(libraries_of(file))
        if needs_script:
            script = self.folder / "bin" / name
            script.write_text(SCRIPT)
            script.chmod(0o755)

    def add_plugins(self, folder, into, pattern):
        for file in sorted(folder.glob(pattern)):
            if NOT_NEEDED.search(file.name):
                continue
            needed = libraries_of(file)
            if any(NOT_NEEDED.search(name) for name in needed):
                continue
            shutil.copy2(os.path.realpath(file), self.folder / "lib" / into / file.name)
            self.libraries.update(needed)

    def add_libraries(self):
        for name, path in self.libraries.items():
            target = self.folder / "lib" / name
            shutil.copy2(os.path.realpath(path), target)
            self.strip(target)

    def add_sources(self, names):
        for name in names:
            for file in sorted(ROOT.glob(name)):
                target = self.folder / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)

    @staticmethod
    def strip(file):
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", str(file)], check=True)


def pmix_plugins(open_mpi):
    """The folder of PMIx's plug-ins: beside the library that Open MPI's plug-in for it is linked with."""
    for file in open_mpi.glob("mca_pmix_ext*.so"):
        for name, path in libraries_of(file).items():
            if name.startswith("libpmix"):
                return Path(os.path.realpath(path)).parent / "pmix"
    return None


def gather(folder, build, version):
    bundle = Bundle(folder)
    for name in PROGRAM_FILES:
        bundle.add_program(build / "bin" / name, needs_script=name != built.PLUGIN)
    open_mpi = open_mpi_folders()
    bundle.add_program(open_mpi["bindir"] / "orterun", "mpirun")
    bundle.add_program(open_mpi["bindir"] / "orted")
    bundle.add_plugins(open_mpi["pkglibdir"], "openmpi", "mca_*.so")
    pmix = pmix_plugins(open_mpi["pkglibdir"])
    if pmix:
        bundle.add_plugins(pmix, "pmix", "pmix_mca_*.so")
    bundle.add_libraries()
    share = folder / "share/openmpi"
    shutil.copytree(open_mpi["pkgdatadir"], share, ignore=lambda _, names: [n for n in names if not n.endswith(".txt")])
    for file in open_mpi["sysconfdir"].glob("openmpi-*.conf"):
        shutil.copy2(file, share)
    subprocess.run([str(build / "bin/import-fashion-mnist"), "--out", str(folder / "data"), "--limit", "171"],
                   check=True, stdout=subprocess.DEVNULL)
    bundle.add_sources(["tests/gpu.sh", "tests/gpu/*.py", "tests/bench/*.py", "tests/programs/train_support.py"])
    facts = {"libtorch": version, "machine": os.uname().machine, "lockstep": commit()}
    (folder / "bundle.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def commit():
    try:
        return output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def size_text(path):
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 2**20:.1f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True, help="a .tar.xz file, or a folder that is not there yet")
    options = parser.parse_args()
    into = options.into.absolute()
    as_file = into.name.endswith((".tar.xz", ".tar.gz"))
    if into.exists() and not as_file:
        sys.exit(f"gpu.sh: {into} is there already: name a folder that is not, or a .tar.xz file")
    version = machine.torch_version(str(built.torch_of(options.build)))
    with tempfile.TemporaryDirectory(dir=into.parent) as place:
        folder = Path(place) / "lockstep-gpu"
        try:
            gather(folder, options.build, version)
        except FileNotFoundError as error:
            sys.exit(f"gpu.sh: {error.filename} is not on this machine, which a bundle is made with: run "
                     "examples/setup.sh, and build all programs")
        except subprocess.CalledProcessError as error:
            sys.exit(f"gpu.sh: {' '.join(map(str, error.cmd))} ended with exit code {error.returncode}; its own "
                     "message is above")
        whole = size_text(folder)
        if as_file:
            kind = "xztar" if into.name.endswith(".xz") else "gztar"
            packed = shutil.make_archive(str(Path(place) / "bundle"), kind, place, folder.name)
            os.replace(packed, into)
            print(f"gpu.sh: {into} holds the bundle, {size_text(into)} ({whole} unpacked): unpack it and run "
                  "lockstep-gpu/tests/gpu.sh")
        else:
            os.replace(folder, into)
            print(f"gpu.sh: {into} is the bundle, {whole}: run its tests/gpu.sh")


if __name__ == "__main__":
    main()
