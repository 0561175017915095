"""Compiles the sources of one folder as the build does, with every warning an error, and keeps nothing.

    warnings.py compile_commands.json FOLDER

Prints what the compilers say and exits 1 when they say anything. Standard library only.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path


def strict(entry):
    """The entry's command without its outputs, with warnings as errors."""
    words = shlex.split(entry["command"])
    kept = []
    skip = False
    for word in words:
        if skip or word in ("-MD", "-MMD"):
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        else:
            kept.append(word)
    if kept and Path(kept[0]).name == "ccache":
        kept.pop(0)
    is_cuda = entry["file"].endswith(".cu")
    return kept + (["-Werror=all-warnings", "-Xcompiler=-Werror"] if is_cuda else ["-Werror"]) + ["-o", "/dev/null"]


def main(commands_file, folder):
    folder = Path(folder).resolve()
    entries = [entry for entry in json.loads(Path(commands_file).read_text(encoding="utf-8"))
               if Path(entry["file"]).resolve().parent == folder]
    if not entries:
        print(f"no source of {folder} is built: nothing was checked")
        return 1
    num_wrong = 0
    for entry in entries:
        done = subprocess.run(strict(entry), cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode or done.stderr.strip():
            num_wrong += 1
            print(f"{entry['file']}:\n{done.stdout}{done.stderr}")
    print(f"{len(entries) - num_wrong} of {len(entries)} sources compile without a warning")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
