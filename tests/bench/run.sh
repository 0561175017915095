#!/usr/bin/env bash
# Compares a training step with that of Python's DistributedDataParallel over gloo, and prints a table.
#
#   tests/bench/run.sh [--pairs N] [--workload NAME...] [--json FILE]
#
# Installs and builds what is missing. Needs two cores and no other work.
set -euo pipefail
# shellcheck source=tests/bench/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"

compare step_bench side_by_side.py "$@"
