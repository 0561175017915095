"""Checks that the house keeps its walls: who includes what, what lies at the top, what a program is linked with.

    walls.py includes ROOT                     no room includes what it must not know
    walls.py top-level ROOT                    the top level holds what it is meant to hold
    walls.py machine-paths ROOT                no file names a folder of somebody's machine
    walls.py linked PROGRAM [--without NAME...] [--with NAME...]
                                               the program itself links no library whose name begins so, or all of these

Each prints one line a finding and exits 1 when there is one. Standard library only.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

STANDARD = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio
    cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem forward_list fstream functional
    future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version
    """.split()
)
FILES_AND_CLOCKS = {"filesystem", "fstream", "chrono", "ctime"}
OPERATING_SYSTEM = set(
    """
    dirent.h dlfcn.h fcntl.h linux/futex.h linux/magic.h linux/mman.h netdb.h poll.h pthread.h pwd.h sched.h signal.h
    spawn.h sys/eventfd.h sys/file.h sys/ioctl.h sys/mman.h sys/prctl.h sys/resource.h sys/signalfd.h sys/socket.h sys/stat.h sys/statfs.h
    sys/statvfs.h sys/syscall.h sys/time.h sys/types.h sys/uio.h sys/utsname.h sys/vfs.h sys/wait.h termios.h time.h
    unistd.h
    """.split()
)


class Room:
    """What the files of one folder may include; names ending in "/" stand for all below them."""

    def __init__(self, rooms, libraries=(), headers=STANDARD, only_in=None, doors=()):
        self.rooms = tuple(f"{room}/" for room in rooms) + tuple(doors)  # doors: single headers of another room
        self.libraries = tuple(libraries)
        self.headers = headers
        self.only_in = only_in or {}  # library -> prefix (or prefixes) of the files that may include it

    def allows(self, file_name, name, is_quoted):
        if is_quoted:
            return name.startswith(self.rooms)
        for library, prefix in self.only_in.items():
            if name.startswith(library):
                return file_name.startswith(prefix)
        return name in self.headers or any(
            name.startswith(library) if library.endswith("/") else name == library for library in self.libraries
        )


ANYTHING = None
ROOMS = {
    "runtime/plan": Room(
        ["runtime/plan"], headers=STANDARD - FILES_AND_CLOCKS, only_in={"emmintrin.h": "copy_past_caches."}
    ),
    "runtime/comm": Room(
        ["runtime/plan", "runtime/comm"],
        libraries=["mpi.h"],
        headers=STANDARD | OPERATING_SYSTEM,
    ),
    "runtime/launch": Room(["runtime/plan", "runtime/launch"], headers=STANDARD | OPERATING_SYSTEM),
    "runtime/cuda": Room(
        ["runtime/plan", "runtime/cuda"],
        libraries=["cuda_runtime_api.h", "nccl.h"],
        only_in={
            "c10/cuda/": ("caller_stream.", "cuda_graph."),
            "ATen/": "cuda_graph.",
            "torch/headeronly/version.h": "cuda_graph.",
        },
        doors=["runtime/comm/device_api.hpp", "runtime/comm/device_plugin.hpp"],
    ),
    "runtime/train": Room(
        ["runtime/plan", "runtime/train"], libraries=["torch/", "ATen/", "c10/", "xxhash.h", "malloc.h"]
    ),
    "io": Room(
        ["runtime/plan", "io"],
        libraries=["hdf5.h", "mpi.h", "xxhash.h", "zlib.h"],
        headers=STANDARD | OPERATING_SYSTEM,
    ),
    "drivers": ANYTHING,
    "examples": ANYTHING,
}
SOURCE_SUFFIXES = {".hpp", ".cpp", ".h", ".c", ".cc", ".cu", ".cuh", ".in"}

TOP_LEVEL = set(
    """
    CMakeLists.txt runtime io drivers slurm tests examples README.md CMakePresets.json LICENSE CHANGELOG.md
    CONTRIBUTING.md .clang-format .clang-tidy .gitignore .gitattributes .ci
    """.split()
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:(<)([^>]+)>|"([^"]+)"|(.*))')
MACHINE_PATH = re.compile(r"(?<![\w.}$~/-])/(?:root|work|home|Users|tmp/w|builds?)/[\w.]")


def findings_in_file(root, room_name, path):
    """The wrong includes of one file of a room, as sentences."""
    room = ROOMS[room_name]
    name_in_root = path.relative_to(root).as_posix()
    own_header = path.with_suffix(".hpp")
    is_first = True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        angle, system_name, quoted_name, computed = match.groups()
        where = f"{name_in_root}:{number}"
        name = system_name or quoted_name
        if computed is not None:
            yield f"{where}: an include that is computed cannot be checked: {line.strip()}"
            continue
        if not angle and not (root / name).is_file():
            yield f'{where}: "{name}" is no file of this project; includes are paths from its root'
        elif room is not ANYTHING and not room.allows(path.name, name, not angle):
            yield f"{where}: {room_name} must not know {name}"
        if is_first and path.suffix == ".cpp" and own_header.is_file():
            # Compiling the source then shows that its header needs nothing included before it.
            if name != own_header.relative_to(root).as_posix():
                yield f"{where}: the first include is {name}, not the file's own header"
        is_first = False


def check_includes(root):
    num_files = 0
    findings = []
    for room_name in ROOMS:
        for path in sorted((root / room_name).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                num_files += 1
                findings += findings_in_file(root, room_name, path)
    if num_files == 0:
        findings.append(f"no source was found under {root}: nothing was checked")
    return findings


def tracked_files(root):
    """The files that git knows, as paths from the root; None where this is no git checkout."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listing.decode().split("\0") if name]


def check_top_level(names):
    entries = {name.split("/", 1)[0] for name in names}
    return [f"{entry} lies at the top level, which holds only: {' '.join(sorted(TOP_LEVEL))}"
            for entry in sorted(entries - TOP_LEVEL)]


def check_machine_paths(root, names):
    findings = []
    for name in names:
        path = root / name
        if not path.is_file():
            continue  # deleted, not yet committed
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # no text
        findings += [f"{name}:{number}: names a folder of one machine: {line.strip()}"
                     for number, line in enumerate(lines, start=1) if MACHINE_PATH.search(line)]
    return findings


def needed_libraries(program):
    """The libraries that the program asks for itself, from its dynamic section."""
    dynamic = subprocess.run(["readelf", "-d", program], capture_output=True, check=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)


def check_linked(program, forbidden, wanted=()):
    needed = needed_libraries(program)
    if not needed:
        return [f"{program} has no dynamic section: nothing was checked"]
    findings = [f"{program} is linked with {library}" for library in needed
                if any(library.startswith(f"lib{name}") for name in forbidden)]
    return findings + [f"{program} is not linked with lib{name}" for name in wanted
                       if not any(library.startswith(f"lib{name}") for library in needed)]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("includes", "top-level", "machine-paths"):
        commands.add_parser(command).add_argument("root", type=Path)
    linked = commands.add_parser("linked")
    linked.add_argument("program")
    linked.add_argument("--without", nargs="+", default=[])
    linked.add_argument("--with", nargs="+", default=[], dest="wanted")
    options = parser.parse_args(arguments)

    if options.command == "linked":
        findings = check_linked(options.program, options.without, options.wanted)
    elif options.command == "includes":
        findings = check_includes(options.root.resolve())
    else:
        root = options.root.resolve()
        names = tracked_files(root)
        if names is None:
            print("skipped: this is not a git checkout")
            return 77
        findings = check_top_level(names) if options.command == "top-level" else check_machine_paths(root, names)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
