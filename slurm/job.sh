# shellcheck shell=bash disable=SC2034,SC2054
# The moves of a training job, shared by the job scripts: hear Slurm, run the ranks, say what becomes of the job.

# Slurm warns this shell with USR1 and ends the job with TERM; both become USR1 to the launcher, which passes it on to
# every rank. (TERM would make srun and mpirun kill the ranks at once.) Never trap CONT: Slurm sends it with every
# signal, and bash then loses one of the two.
launcher="" warned=no terminated=no
warn() {
  warned=yes
  [ -z "$launcher" ] || kill -USR1 "$launcher" 2>/dev/null
}
trap warn USR1
trap 'terminated=yes; warn' TERM

# Signals that come while the program is being loaded wait until it takes them (coreutils 8.31 or newer).
BLOCK_SIGNALS=()
if env --block-signal=USR1 true 2>/dev/null; then BLOCK_SIGNALS=(env --block-signal=TERM,USR1,USR2); fi

# run COMMAND...: runs it and sets `status` to its exit status.
run() {
  status=85
  [ $warned = no ] || return 0  # too late to begin
  "$@" &
  launcher=$!
  while wait $launcher; status=$?; kill -0 $launcher 2>/dev/null; do :; done  # a signal ends a wait early
  wait $launcher 2>/dev/null
  local last=$?
  [ $last = 127 ] || status=$last
}

# finish: ends the job so that it comes back when it should. Exit codes of lockstep-train: 0 finished, 85 state saved,
# requeue me, 1 failed, a retry may help, 2 wrong usage, 86 do not requeue.
finish() {
  trap - USR1 TERM
  local restarts=${SLURM_RESTART_COUNT:-0} name=$SLURM_JOB_ID
  # The bare number of an array's task may mean the whole array.
  [ -z "$SLURM_ARRAY_JOB_ID" ] || name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  if [ "$status" = 1 ] || [ "$status" -gt 128 ]; then
    echo "job $name: the launch failed with exit status $status after $SECONDS s"
    if [ "$RETRY_FAILURES_AFTER" != never ] && [ $SECONDS -ge "$RETRY_FAILURES_AFTER" ]; then status=85; fi
    [ $warned = no ] || status=85  # the launcher was not ready for the warning, or the ranks did not get done
  fi
  # After TERM, Slurm itself has decided: a cancelled job stays cancelled, a preempted one comes back.
  if [ "$status" = 85 ] && [ $terminated = no ] && [ "$REQUEUE_BY" = script ]; then
    if [ "$restarts" -lt "$MAX_RESTARTS" ]; then
      echo "job $name: requeue after $restarts restarts"
      scontrol requeue "$name" && exec sleep 300  # Slurm ends this shell at once
    else
      echo "job $name: not requeued, $restarts restarts are the most (MAX_RESTARTS=$MAX_RESTARTS)"
    fi
  fi
  exit "$status"
}
