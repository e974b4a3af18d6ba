"""Mounts of jobs that have ended: an epilog that never ran (the node was lost, slurmd was killed), or a daemon that has
outlived the job that started it, as under Slurm's proctrack/linuxproc and pgid.

What such a job held is given up; a mount that nobody holds any more ends. A daemon that a job has started ends, if
nobody holds its mount and nothing is open there. Whether a job has ended only Slurm says: where it does not, all stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

from hfs.mountd.base.errors import HfsError, MountError
from hfs.mounting import jobs, keeper, mountinfo, mounting
from hfs.mounting.keeper import FoundKeeper
from hfs.sweeping import sockets
from hfs.sweeping.swept import Swept

_END_S = 20.0
"""A daemon writes what it has fetched for ten seconds at most."""


def sweep(*, dry_run: bool) -> Iterator[Swept]:
    """Of all mounts that are ours."""
    owners = {uid for _, uid in sockets.directories()}
    if os.geteuid() == 0:  # whose XDG_RUNTIME_DIR may be anywhere, and whose mount is seen all the same
        owners.update(mount.owner_uid or 0 for mount in mountinfo.hfs_mounts())
    has_ended = cache(jobs.has_ended)
    for owner in sorted(owners):
        for kept in list(keeper.of_user(owner)):
            held_by = [str(held["job"]) for held in kept.status.get("held_by", []) if held.get("job")]
            for job in held_by:
                if has_ended(job):
                    yield _released(kept, job, dry_run=dry_run)
            lingers = bool(kept.config.get("linger_s"))  # and ends by itself
            if not kept.status.get("held_by") and not kept.status.get("ending") and not lingers:
                starter = jobs.job_of_process(kept.pid) if kept.pid else None
                if starter is not None and has_ended(starter):
                    yield from _ended(kept, starter, dry_run=dry_run)


def _released(kept: FoundKeeper, job: str, *, dry_run: bool) -> Swept:
    where, text = str(kept.status.get("mountpoint")), f"use by job {job}, which has ended"
    try:
        if not dry_run:
            kept.release_job(job)
    except (OSError, MountError) as error:
        return Swept("job", where, text, f"its keeper, process {kept.pid}, does not answer ({error})")
    return Swept("job", where, text)


def _ended(kept: FoundKeeper, job: str, *, dry_run: bool) -> Iterator[Swept]:
    """A mount that is seen here; of one in another namespace nobody knows who uses it."""
    device = kept.status.get("device")
    for mount in mountinfo.hfs_mounts():
        if mount.device != device:
            continue
        text = f"mount and daemon of job {job}, which has ended"
        try:
            if not dry_run:
                mounting.unmount(mount.mountpoint, limit_s=_END_S)
        except HfsError as error:
            yield Swept("daemon", mount.mountpoint, text, " ".join(str(error).split()))
        else:
            yield Swept("daemon", mount.mountpoint, text)
        return
