# shellcheck shell=bash
# Sourced by the scripts that build and run Lockstep: sets what they share, and changes no folder.

# The folder of the sources.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Open MPI refuses to start as root unless told twice that it is meant (containers, continuous integration).
if ((EUID == 0)); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# One thread a rank: ranks are how this runtime uses cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Another clone of the same sources finds what was compiled for the first.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

# The cores this process may use; nproc would answer with OMP_NUM_THREADS where that is set.
num_cores() { env -u OMP_NUM_THREADS nproc; }

# How many files to compile at once: one a core, and no more than memory holds (a file that includes LibTorch takes
# up to 1.5 GB).
build_jobs() {
  local cores available_kib fitting
  cores=$(num_cores)
  available_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  fitting=$((available_kib / (1536 * 1024)))
  ((fitting < 1)) && fitting=1
  echo $((fitting < cores ? fitting : cores))
}
