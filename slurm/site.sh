# shellcheck shell=bash disable=SC2034
# What differs between sites; the job scripts read it. Lines are plain bash, values may come from the environment.

# Programs that the job needs, for example:
#   module load openmpi hdf5

# The program, and how its ranks are started (`srun --mpi=list` shows the names that this site has).
LOCKSTEP_TRAIN=${LOCKSTEP_TRAIN:-$SLURM_SUBMIT_DIR/build/release/bin/lockstep-train}
SRUN=${SRUN:-srun --kill-on-bad-exit=1 --mpi=pmix}
MPIRUN=${MPIRUN:-mpirun}

# Ranks that crash in MPI_Init under srun with several jobs on a node: the pmix plugin's default fence is the cause.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}

# Who requeues a job that ends with exit code 85:
#   slurm   the site has RequeueExit=85 in slurm.conf (`scontrol show config | grep RequeueExit`)
#   script  it has not: the job script calls `scontrol requeue`
REQUEUE_BY=${REQUEUE_BY:-script}

# A launch that failed (exit code 1, a killed rank, a lost node) after this many seconds or more is launched again; one
# that fails at once is not: something is wrong with the job, and not with the machine. "never" is an answer, too.
# Launches without progress are counted by lockstep-train itself (--max-restarts-without-progress): exit code 86.
RETRY_FAILURES_AFTER=${RETRY_FAILURES_AFTER:-60}

# The script requeues a job at most this often.
MAX_RESTARTS=${MAX_RESTARTS:-100}
