#!/usr/bin/env bash
# Compares saving a checkpoint with the disk itself, with HDF5's collective write, and with PyTorch's torch.save and
# distributed checkpoint, and prints a table.
#
#   tests/bench/checkpoint.sh [--rounds N] [--folder FOLDER] [--json FILE]
#
# Installs and builds what is missing. Needs two cores, no other work, and 2 GB in the folder.
set -euo pipefail
# shellcheck source=tests/bench/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"

compare checkpoint_bench checkpoint_side_by_side.py "$@"
