#!/bin/bash
# A Slurm job whose nodes read a data set through hfs. Printed by: hfs slurm job
#
# For users; root is not needed, and nothing is installed. Set the #SBATCH lines, then: sbatch FILE
# The daemons, one a node, run in a step of their own: the end of another step does not end them. They unmount by
# themselves when Slurm ends the job (scancel, time limit), and at the end of this script. Where a mount does not
# answer on all nodes, the training reads SOURCE directly. The cache stays for the next job on the node.
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@120 # this script is told two minutes before the time limit
set -euo pipefail
hfs=hfs
source=/lustre/imagenet
mountpoint=${TMPDIR:-/tmp}/hfs-data-$(id -u)
cache=${TMPDIR:-/tmp}/hfs-cache-$(id -u)
options=()
wait_s=60

on_each_node() { # runs a command once on each node, beside other steps, on any of the job's CPUs
    srun --overlap --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --cpu-bind=none --no-kill "$@"
}
# shellcheck disable=SC2329,SC2317 # called by the trap
finish() {
    status=$?
    trap - EXIT
    trap '' TERM
    on_each_node --quiet "$hfs" umount --lazy "$mountpoint" || true # fails where Slurm has ended the daemons already
    wait "$daemons" || true
    exit "$status"
}

export hfs mountpoint
# shellcheck disable=SC2016 # the variables are those of the shell on each node
on_each_node --job-name=hfs --output="hfs-%j-%N.log" \
    bash -c 'mkdir -p "$mountpoint" && exec "$hfs" mount --foreground "$@"' hfs \
    "$source" "$mountpoint" --cache "$cache" "${options[@]}" &
daemons=$!
trap finish EXIT
sleep 1 # they need that long in any case, and slurmd 22.05 was seen to crash at two steps that start at the same moment
data=$mountpoint
if ! on_each_node --quiet "$hfs" status --wait "$wait_s" "$mountpoint" >/dev/null; then
    echo "hfs: no mount on every node, see hfs-$SLURM_JOB_ID-*.log; $source is read directly" >&2
    data=$source
fi

training=(python train.py --data "$data")
srun --overlap "${training[@]}" &
step=$!
trap 'kill -TERM "$step"' TERM
status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # it was a signal that has ended the wait, not the step's end
    status=0
    wait "$step" || status=$?
done
exit "$status"
