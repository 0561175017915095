#!/bin/bash
# Starts mpirun's daemon on a node as a grandchild of Slurm's. With cgroups Slurm's TERM reaches only its direct child,
# this shell, and not the daemon, which would end its ranks at once. The shell asks the ranks to save and stop instead;
# they live until they have, or until Slurm's KILL.
orted "$@" &
daemon=$!
trap 'pkill -USR1 --parent $daemon' TERM
while wait $daemon; status=$?; kill -0 $daemon 2>/dev/null; do :; done
exit $status
