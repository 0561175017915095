#!/bin/bash
# Starts mpirun's daemon on a node as a grandchild of Slurm's. With cgroups Slurm signals only its direct child, this
# shell, which does not mind: the daemon and its ranks live until they are done, or until Slurm's KILL.
trap '' TERM
orted "$@" &
wait $!
