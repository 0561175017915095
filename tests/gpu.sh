#!/usr/bin/env bash
# Checks Lockstep on a machine with a GPU, in at most eight minutes, and writes a report.
#
#   tests/gpu.sh [--report FILE] [--time-limit SECONDS] [--only CHECK...] [--build DIR]
#   tests/gpu.sh --pack FILE|DIR [--build DIR]
#
# The first form runs the device tests, lockstep-train, compute-sanitizer and a comparison of step times with Python's
# DistributedDataParallel, each in a time box of its own. It takes the programs of build/release (or of --build), which
# are built first where they are missing; that time is not counted. The report is JSON: the machine, and for each check
# whether it passed, failed or was skipped, why, how long it took, and its figures. Default: gpu-report.json.
#
# The second form is for a build machine. It gathers the programs and the small libraries that they need (Open MPI,
# HDF5 and theirs), for a machine that has none of them: a .tar.xz file, or a folder. There, unpack it and run its
# tests/gpu.sh: it needs a driver, python3, and a LibTorch with CUDA of the same version as the build's: the Python
# module torch, or what LOCKSTEP_TORCH_DIR names.
#
#   --device cpu   tries the checks themselves where there is no GPU: the CPU stands in
#   PYTHON         the Python to use (default: python3); the one that has torch
#
# Exit code 0: no check failed; 1: one did; 2: wrong usage; 77: there is no GPU, and nothing was run on one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
python=${PYTHON:-python3}

fail() {
  printf 'gpu.sh: %s\n' "$*" >&2
  exit "${exit_code:-1}"
}
wrong_usage() { exit_code=2 fail "$* (see --help)"; }

pack=
build=$root/build/release
arguments=(--report gpu-report.json)
while (($#)); do
  case $1 in
    --help | -h)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --only)
      arguments+=("$1")
      shift
      while (($#)) && [[ $1 != --* ]]; do
        arguments+=("$1")
        shift
      done
      ;;
    --pack | --build | --report | --time-limit | --device)
      (($# > 1)) || wrong_usage "$1 needs a value"
      case $1 in
        --pack) pack=$2 ;;
        --build) build=$(cd "$2" 2>/dev/null && pwd) || wrong_usage "there is no folder $2" ;;
        *) arguments+=("$1" "$2") ;;
      esac
      shift 2
      ;;
    *) wrong_usage "unknown option $1" ;;
  esac
done

command -v "$python" >/dev/null || fail "there is no $python, which runs the checks: install Python 3.10 or newer," \
  "or name one in PYTHON."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$python is older than Python 3.10: name a" \
  "newer one in PYTHON."

if [[ -f $root/bundle.json ]]; then
  [[ -z $pack ]] || wrong_usage "--pack is for the machine that the bundle came from"
  exec "$python" "$here/gpu/run_checks.py" --bundle "$root" "${arguments[@]}"
fi

# shellcheck source=examples/environment.sh
source "$root/examples/environment.sh"
programs=(lockstep-train lockstep-checkpoint import-fashion-mnist step_bench device_test gpu_device_test)
built=yes
for program in "${programs[@]}" liblockstep_cuda.so; do
  [[ -e $build/bin/$program ]] || built=no
done
if [[ $built == no ]]; then
  for tool in cmake ninja c++ mpicc; do
    command -v "$tool" >/dev/null || fail "the programs are not all in $build/bin, and there is no $tool to build" \
      "them: run examples/setup.sh, or bring a bundle from a build machine (tests/gpu.sh --pack FILE)."
  done
  echo "gpu.sh: building in $build"
  cmake -S "$root" -B "$build" -G Ninja -DLOCKSTEP_CUDA=ON >/dev/null || fail "CMake could not configure $build with" \
    "-DLOCKSTEP_CUDA=ON; its own message is above."
  cmake --build "$build" --parallel "$(build_jobs)" --target "${programs[@]}" lockstep_cuda ||
    fail "the build in $build failed; its own message is above."
fi

if [[ -n $pack ]]; then
  exec "$python" "$here/gpu/pack.py" --build "$build" --into "$pack"
fi
exec "$python" "$here/gpu/run_checks.py" --build "$build" "${arguments[@]}"
