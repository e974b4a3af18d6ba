#!/bin/bash
# Slurm prolog of hfs: mounts data sets on a node before a job starts there. Printed by: hfs slurm prolog
#
# Installed by root on each node, executable, for example as /etc/slurm/hfs-prolog; and in slurm.conf:
#     Prolog=/etc/slurm/hfs-prolog
#     Epilog=/etc/slurm/hfs-epilog   # hfs slurm epilog
#     PrologFlags=Alloc              # on all nodes of a job, before its script starts
# Each file of `configs` is a mount: source, mountpoint, cache and other keys of hfs mount, as TOML.
#
# Jobs on one node use the same mount, which goes with the last one's epilog. This must not fail: Slurm would drain the
# node. What goes wrong is told to syslog and slurmd's log, and the job starts all the same, with an empty mountpoint.
set -u
hfs=hfs
configs=(/etc/hfs/slurm.toml)
limit_s=30 # a prolog that takes long holds the job up; PrologEpilogTimeout must be longer

export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
for config in "${configs[@]}"; do
    if ! said=$(timeout -k 5 "$limit_s" "$hfs" mount --config "$config" --job "$SLURM_JOB_ID" 2>&1 </dev/null); then
        echo "hfs prolog of job $SLURM_JOB_ID, $config: ${said:-not mounted within $limit_s s}" >&2
        logger -t hfs-prolog -- "job $SLURM_JOB_ID, $config: ${said:-not mounted within $limit_s s}" || true
    fi
done
exit 0
