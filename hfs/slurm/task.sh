#!/bin/bash
# A task of a Slurm job array; tasks on one node share hfs's cache. Printed by: hfs slurm task
#
# For users; root is not needed, and nothing is installed. Set the #SBATCH lines, then: sbatch FILE
# COMMAND sees the data at SOURCE itself. The first task on a node starts the daemon, others use it.
#SBATCH --job-name=task
#SBATCH --array=0-9
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --signal=B:TERM@120 # hfs run passes it on to COMMAND two minutes before the time limit
set -euo pipefail
hfs=hfs
source=/lustre/imagenet
cache=${TMPDIR:-/tmp}/hfs-cache-$(id -u)
options=()

training=(python train.py --data "$source" "$SLURM_ARRAY_TASK_ID")
exec "$hfs" run --source "$source" --cache "$cache" "${options[@]}" -- "${training[@]}"
