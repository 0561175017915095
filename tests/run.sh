#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test.
#
#   tests/run.sh                  everything but the slow tests
#   tests/run.sh --label ROOM     one room's tests: plan, comm, launch, train, io, programs, package, slurm, walls, cuda, gpu
#   tests/run.sh --slow           the slow tests too
#   tests/run.sh --sanitize       plan, comm, launch, train and io under AddressSanitizer and UBSan, on one and two ranks
#   tests/run.sh --no-setup       without a look at what is installed
#
# Arguments after `--` go to ctest (tests/run.sh -- -R BatchPlan). Exit code 0 means: all of them passed.
set -euo pipefail

# shellcheck source=examples/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../examples/environment.sh"

preset=release
label=
with_setup=yes
with_slow=no
while (($#)); do
  case $1 in
    --label)
      (($# > 1)) || { echo "tests/run.sh: --label needs the name of a room (see --help)" >&2; exit 2; }
      label=$2
      shift
      ;;
    --slow) with_slow=yes ;;
    --sanitize) preset=sanitize ;;
    --no-setup) with_setup=no ;;
    --)
      shift
      break
      ;;
    --help | -h)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "tests/run.sh: unknown option $1 (see --help)" >&2
      exit 2
      ;;
  esac
  shift
done

if [[ $with_setup == yes ]]; then
  "$root/examples/setup.sh" --tests
fi

build=$root/build/$preset
cd "$root"
cmake --preset "$preset"
targets=()
if [[ $preset == sanitize ]]; then
  targets=(--target plan_tests comm_tests launch_tests train_tests io_tests)
fi
cmake --build "$build" --parallel "$(build_jobs)" "${targets[@]}"

# Tests say how many processors they take, so that ranks of different tests do not fight for a core.
selection=(--no-tests=error --output-on-failure --parallel "$(num_cores)")
if [[ -n $label ]]; then
  selection+=(--label-regex "^${label}\$")
fi
left_out=()
[[ $with_slow == yes ]] || left_out+=(slow)
[[ $preset != sanitize ]] || left_out+=(big)  # which would need the memory several times
if ((${#left_out[@]} > 0)); then
  selection+=(--label-exclude "^($(IFS='|' && echo "${left_out[*]}"))\$")
fi
if [[ $preset == sanitize ]]; then
  [[ -n $label ]] || selection+=(--label-regex '^(plan|comm|launch|train|io)$')
  selection+=(--exclude-regex '\.[3-9]$')
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
fi
export GTEST_BRIEF=${GTEST_BRIEF:-1}  # of a test that fails, only what failed
# From here on the words are ctest's own, the closing line too.
exec ctest --test-dir "$build" "${selection[@]}" "$@"
