#!/usr/bin/env bash
# From nothing to the point of Lockstep: installs what is missing, builds, trains a CNN on Fashion-MNIST with two MPI
# ranks, stops half-way, goes on with three, and shows that the weights are those of a run on one rank that never
# stopped, to the last bit.
#
#   examples/quickstart.sh [--steps N]      steps of the whole run (default 200)
#
# Files go to build/quickstart/. Exit code 0 means: the weights are equal.
set -euo pipefail
# shellcheck source=examples/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

steps=200
case ${1:-} in
  '') ;;
  --steps)
    steps=${2:-}
    if ! [[ $steps =~ ^[0-9]+$ ]] || ((steps < 2)); then
      echo "quickstart: --steps takes a number from 2 on" >&2
      exit 2
    fi
    ;;
  --help | -h)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  *)
    echo "quickstart: unknown option $1 (see --help)" >&2
    exit 2
    ;;
esac

title() { printf '\n=== %s\n\n' "$*"; }
show() { printf '$ %s\n' "${*/#"$root/"/}"; }  # a command, as one would type it in the folder of the sources

title "Set-up and build"
"$root/examples/setup.sh"
cd "$root"
cmake --preset release >/dev/null
cmake --build build/release --parallel "$(build_jobs)" \
  --target lockstep-train lockstep-checkpoint import-fashion-mnist
bin=build/release/bin
work=build/quickstart
rm -rf "$work/one-rank" "$work/many-ranks"
mkdir -p "$work"

title "Data: the 70,000 images as HDF5"
$bin/import-fashion-mnist --out "$work"

# One command line for all runs: nothing in it speaks of ranks.
run=(--train-data "$work/train.h5" --validation-data "$work/test.h5" --model cnn --dropout 0.25 --loss cross-entropy
  --optimizer adamw --learning-rate 1e-3 --lr-scheduler-type cosine --warmup-ratio 0.1
  --global-batch-size 64 --micro-batch-size 8 --max-steps "$steps" --seed 1 --save-interval-seconds 600)

# train RANKS OPTION...: exit code 85 means: stopped as asked, the state is saved.
train() {
  local ranks=$1 code=0
  shift
  show mpirun -n "$ranks" $bin/lockstep-train ... "$@"
  mpirun --quiet -n "$ranks" --oversubscribe --bind-to none $bin/lockstep-train "${run[@]}" "$@" </dev/null || code=$?
  ((code == 0 || code == 85)) || exit "$code"
}

printf '\nEvery run below has these options: %s\n' "${run[*]}"

title "Run A: one rank, never stopped"
train 1 --checkpoint-dir $work/one-rank

title "Run B: two ranks, stopped after $((steps / 2)) of $steps steps"
train 2 --checkpoint-dir $work/many-ranks --stop-after-steps $((steps / 2))

look() {
  show h5dump "$@"
  h5dump "$@"
}
newest() { find "$1" -name '*.h5' -type f | sort -V | tail -n 1; }
checkpoint=$(newest $work/many-ranks)
title "What the checkpoint holds, seen with HDF5's own tools"
look -n "$checkpoint"
look -a /progress/steps_taken -a /progress/consumed_samples -a /loss_scaler/scale "$checkpoint"
look -d /weights/conv1.weight -s 0,0,0,0 -c 1,1,3,3 "$checkpoint"

title "Run B goes on with three ranks, to the end"
train 3 --checkpoint-dir $work/many-ranks

title "Are they the same run?"
a=$(newest $work/one-rank)
b=$(newest $work/many-ranks)
show $bin/lockstep-checkpoint diff "$a" "$b"
if ! $bin/lockstep-checkpoint diff "$a" "$b"; then
  echo
  echo "The runs differ: that is a bug in Lockstep. Please report it with the files in $work."
  exit 1
fi
cat <<END

Equal to the last bit: weights, optimizer moments, schedule, loss scaler and progress of
  A  $steps steps on 1 rank, never stopped
  B  $((steps / 2)) steps on 2 ranks, stopped, and $((steps - steps / 2)) steps on 3 ranks
END
