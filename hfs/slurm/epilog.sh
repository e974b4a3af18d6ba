#!/bin/bash
# Slurm epilog of hfs: ends a job's use of what its prolog has mounted, and cleans up. Printed by: hfs slurm epilog
#
# Installed by root on each node, executable, for example as /etc/slurm/hfs-epilog; in slurm.conf:
#     Epilog=/etc/slurm/hfs-epilog
# Runs when all processes of the job have gone, however it has ended. The last job's epilog unmounts; the cache stays
# for the next one. hfs sweep removes what daemons have left that users started and Slurm has killed: dead mounts,
# sockets. It touches no mount that answers and is in use. This must not fail: Slurm would drain the node.
set -u
hfs=hfs
limit_s=60 # a daemon writes what it has fetched to the cache at its end

export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
timeout -k 5 "$limit_s" "$hfs" umount --job "$SLURM_JOB_ID" </dev/null
timeout -k 5 "$limit_s" "$hfs" sweep </dev/null
exit 0
