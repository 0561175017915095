# The two moves of a training job, shared by the job scripts: run the ranks, then say what becomes of the job.

# Signals that come while the program is being loaded wait until it takes them (needs coreutils 8.31).
BLOCK_SIGNALS=
env --block-signal=USR1 true 2>/dev/null && BLOCK_SIGNALS="env --block-signal=TERM,USR1,USR2"

# run COMMAND...: runs it, sends it USR1 when Slurm warns or ends the job, and sets `status` to its exit status.
#
# srun and mpirun pass USR1 on to every rank; TERM would make them kill the ranks at once. Never trap CONT here:
# Slurm sends it with every signal, and bash then loses one of the two.
run() {
  terminated=no
  "$@" &
  local pid=$! last
  trap 'kill -USR1 '$pid' 2>/dev/null' USR1
  trap 'terminated=yes; kill -USR1 '$pid' 2>/dev/null' TERM
  while wait $pid; status=$?; kill -0 $pid 2>/dev/null; do :; done  # a trapped signal ends a wait early
  wait $pid 2>/dev/null
  last=$?
  [ $last = 127 ] || status=$last
}

# finish: ends the job so that it comes back when it should. Exit codes of lockstep-train: 0 finished, 85 state saved,
# requeue me, 1 failed, a retry may help, 2 wrong usage, 86 do not requeue.
finish() {
  trap - USR1 TERM
  local name=$SLURM_JOB_ID
  # The bare number of an array's task may mean the whole array.
  [ -z "$SLURM_ARRAY_JOB_ID" ] || name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  if [ $RETRY_FAILURES = yes ] && { [ $status = 1 ] || [ $status -gt 128 ]; }; then
    echo "job $name: the launch failed with exit status $status"
    [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ] || status=85
  fi
  # After TERM, Slurm itself has decided: a cancelled job stays cancelled, a preempted one comes back.
  if [ $status = 85 ] && [ $terminated = no ] && [ $REQUEUE_BY = script ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_RESTARTS" ]; then
      echo "job $name: requeue after ${SLURM_RESTART_COUNT:-0} restarts"
      scontrol requeue "$name" && exec sleep 300  # Slurm ends this shell at once
    else
      echo "job $name: not requeued, $SLURM_RESTART_COUNT restarts are the most (MAX_RESTARTS=$MAX_RESTARTS)"
    fi
  fi
  exit $status
}
