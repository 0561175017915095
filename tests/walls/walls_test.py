"""The checks of walls.py find what they are there to find."""

import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import walls


class Includes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name).resolve()
        self.write("runtime/plan/number.hpp", "#pragma once\n#include <vector>\n")
        self.write("runtime/comm/ranks.hpp", '#pragma once\n#include <mpi.h>\n#include "runtime/plan/number.hpp"\n')
        self.write("runtime/comm/device_api.hpp", '#pragma once\n#include "runtime/plan/number.hpp"\n')
        self.write("runtime/launch/signals.hpp", '#include <unistd.h>\n#include "runtime/plan/number.hpp"\n')
        self.write("runtime/cuda/device.hpp", '#include <nccl.h>\n#include "runtime/comm/device_api.hpp"\n')
        self.write("runtime/train/loop.hpp", '#include <ATen/ops/zeros.h>\n#include "runtime/plan/number.hpp"\n')
        self.write("io/file.hpp", '#include <hdf5.h>\n#include <unistd.h>\n#include "runtime/plan/number.hpp"\n')
        self.write("drivers/main.cpp", '#include <CLI/CLI.hpp>\n#include "io/file.hpp"\n#include <unistd.h>\n')

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def assert_refuses(self, name, line):
        self.assertEqual(walls.check_includes(self.root), [])
        self.write(name, line + "\n")
        findings = walls.check_includes(self.root)
        self.assertEqual(len(findings), 1, f"{name}: {line}: {findings}")
        self.assertTrue(findings[0].startswith(f"{name}:1: "), findings[0])
        (self.root / name).unlink()

    def test_accepts_the_right_way(self):
        self.assertEqual(walls.check_includes(self.root), [])

    def test_refuses_the_wrong_way(self):
        wrong = {
            "runtime/plan": ["<mpi.h>", "<torch/torch.h>", "<hdf5.h>", "<fstream>", "<chrono>", "<unistd.h>",
                             '"runtime/comm/ranks.hpp"', '"io/file.hpp"'],
            "runtime/comm": ["<torch/torch.h>", "<ATen/ATen.h>", "<hdf5.h>", "<nccl.h>", "<cuda_runtime.h>",
                             '"runtime/train/loop.hpp"', '"runtime/cuda/device.hpp"', '"io/file.hpp"'],
            "runtime/launch": ["<mpi.h>", "<torch/torch.h>", "<hdf5.h>", '"runtime/comm/ranks.hpp"'],
            "runtime/cuda": ["<mpi.h>", "<torch/torch.h>", "<c10/cuda/CUDAStream.h>", "<hdf5.h>",
                             '"runtime/comm/ranks.hpp"', '"runtime/train/loop.hpp"', '"io/file.hpp"'],
            "runtime/train": ["<mpi.h>", "<nccl.h>", '"runtime/cuda/device.hpp"', "<hdf5.h>", '"runtime/comm/ranks.hpp"', '"io/file.hpp"'],
            "io": ["<torch/torch.h>", "<c10/util/Half.h>", '"runtime/comm/ranks.hpp"', '"runtime/train/loop.hpp"'],
        }
        for room, includes in wrong.items():
            for include in includes:
                self.assert_refuses(f"{room}/planted.cpp", f"#include {include}")
                self.assert_refuses(f"{room}/planted.hpp", f"  #  include {include}  // hidden")

    def test_refuses_paths_that_are_not_from_the_root(self):
        self.assert_refuses("runtime/plan/planted.cpp", '#include "number.hpp"')
        self.assert_refuses("drivers/planted.cpp", '#include "../io/file.hpp"')

    def test_refuses_computed_includes(self):
        self.assert_refuses("runtime/plan/planted.cpp", "#include HEADER")

    def test_wants_a_source_to_include_its_own_header_first(self):
        self.write("runtime/plan/number.cpp", '#include <vector>\n#include "runtime/plan/number.hpp"\n')
        self.assertEqual(walls.check_includes(self.root),
                         ["runtime/plan/number.cpp:1: the first include is vector, not the file's own header"])

    def test_lets_one_file_of_a_room_include_what_the_others_must_not(self):
        self.write("runtime/cuda/caller_stream.cpp", "#include <c10/cuda/CUDAStream.h>\n")
        self.assertEqual(walls.check_includes(self.root), [])

    def test_an_empty_tree_is_a_finding(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(len(walls.check_includes(Path(empty))), 1)

    def test_the_command_exits_with_1(self):
        self.write("runtime/plan/planted.cpp", "#include <mpi.h>\n")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(walls.main(["includes", str(self.root)]), 1)
        self.assertIn("runtime/plan must not know mpi.h", output.getvalue())


class TopLevel(unittest.TestCase):
    def test_accepts_the_agreed_entries(self):
        self.assertEqual(walls.check_top_level(["README.md", "io/file.hpp", ".ci/run"]), [])

    def test_refuses_another_folder(self):
        findings = walls.check_top_level(["io/file.hpp", "scripts/a.sh", "scripts/b.sh"])
        self.assertEqual(len(findings), 1)
        self.assertTrue(findings[0].startswith("scripts lies at the top level"), findings)


class MachinePaths(unittest.TestCase):
    def findings(self, text):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").write_text(text, encoding="utf-8")
            return walls.check_machine_paths(Path(folder), ["file"])

    def test_refuses_somebodys_folder(self):
        for folder in ("root", "home", "work", "Users"):
            self.assertEqual(len(self.findings(f'open("/{folder}/somebody/data.h5")\n')), 1, folder)

    def test_accepts_what_every_machine_has(self):
        self.assertEqual(self.findings("/usr/share/datasets $HOME/work/x ../work/y build/root/z\n"), [])


class Linked(unittest.TestCase):
    def test_reads_the_dynamic_section(self):
        program = sys.executable
        libraries = walls.needed_libraries(program)
        self.assertTrue(any(library.startswith("libc.") for library in libraries), libraries)
        self.assertEqual(walls.check_linked(program, ["torch"]), [])
        self.assertEqual(walls.check_linked(program, ["c.so"]), [f"{program} is linked with libc.so.6"])
        self.assertEqual(walls.check_linked(program, [], ["c.so"]), [])
        self.assertEqual(walls.check_linked(program, [], ["nccl"]), [f"{program} is not linked with libnccl"])

    def test_a_program_that_cannot_be_read_is_an_error(self):
        with self.assertRaises(subprocess.CalledProcessError), contextlib.redirect_stderr(io.StringIO()):
            walls.needed_libraries("/no/such/program")


if __name__ == "__main__":
    unittest.main()
