"""Mounts of jobs that have ended: an epilog that never ran (the node was lost, slurmd was killed), or a daemon that has
outlived the job that started it, as under Slurm's proctrack/linuxproc and pgid.

What such a job held is given up; a mount that nobody holds any more ends. A daemon that a job has started ends, if
nobody holds its mount and nothing is open there. Whether a job has ended only Slurm says: where it does not, all stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from hfs.mountd.core.errors import HfsError, MountError
from hfs.mounting import jobs, keeper, mountinfo, mounting
from hfs.mounting.keeper import FoundKeeper
from hfs.sweeping import Swept, TimeForOthers, sockets

_END_S = 20.0
"""A daemon writes what it has fetched for ten seconds at most."""
_ASKED_S = 20.0
"""For all that Slurm is asked: it may be silent, and who likes names many jobs."""
_MOST_JOBS = 64
"""Of one user. A node has a few."""


class _Slurm:
    """Asked once for each job, and not for ever."""

    def __init__(self) -> None:
        self._known: dict[str, bool | None] = {}
        self._left_s = _ASKED_S

    def has_ended(self, job: str, limit_s: float) -> bool | None:
        """As `jobs.has_ended`."""
        if job not in self._known:
            since_s = time.monotonic()
            limit_s = min(limit_s, self._left_s)
            self._known[job] = jobs.has_ended(job, limit_s) if limit_s > 0 else None
            self._left_s -= time.monotonic() - since_s
        return self._known[job]


def sweep(*, dry_run: bool, others: TimeForOthers) -> Iterator[Swept]:
    """Of all mounts that are ours."""
    owners = {uid for _, uid in sockets.directories()}
    if os.geteuid() == 0:  # whose XDG_RUNTIME_DIR may be anywhere, and whose mount is seen all the same
        owners.update(mount.owner_uid or 0 for mount in mountinfo.hfs_mounts())
    slurm = _Slurm()
    for owner in others.each(owners):
        yield from _of_user(owner, slurm, others, dry_run=dry_run)


def _of_user(owner: int, slurm: _Slurm, others: TimeForOthers, *, dry_run: bool) -> Iterator[Swept]:
    named: set[str] = set()
    is_theirs = owner != os.geteuid()

    def has_ended(job: str) -> bool | None:
        named.add(job)
        return slurm.has_ended(job, others.left_s(owner)) if len(named) <= _MOST_JOBS else None

    for kept in list(keeper.of_user(owner)):
        held_by = kept.status.get("held_by") or []
        for job in [held["job"] for held in held_by if held.get("job")]:
            if not others.left_s(owner):
                return
            if has_ended(job):
                yield _released(kept, job, dry_run=dry_run)._replace(is_theirs=is_theirs)
        lingers = bool(kept.config.get("linger_s"))  # and ends by itself
        if not held_by and not kept.status.get("ending") and not lingers:
            starter = jobs.job_of_process(kept.pid) if kept.pid else None
            if starter is not None and has_ended(starter) and (left_s := others.left_s(owner)):
                for swept in _ended(kept, owner, starter, min(_END_S, left_s), dry_run=dry_run):
                    yield swept._replace(is_theirs=is_theirs)


def _released(kept: FoundKeeper, job: str, *, dry_run: bool) -> Swept:
    where, text = str(kept.status.get("mountpoint")), f"use by job {job}, which has ended"
    try:
        if not dry_run:
            kept.release_job(job)
    except (OSError, MountError) as error:
        return Swept("job", where, text, f"its keeper, process {kept.pid}, does not answer ({error})")
    return Swept("job", where, text)


def _ended(kept: FoundKeeper, owner: int, job: str, limit_s: float, *, dry_run: bool) -> Iterator[Swept]:
    """A mount that is seen here; of one in another namespace nobody knows who uses it. That the keeper's user has made
    it the kernel says: a keeper may name anybody's."""
    device = kept.status.get("device")
    for mount in mountinfo.hfs_mounts():
        if mount.device != device or mount.owner_uid != owner:
            continue
        text = f"mount and daemon of job {job}, which has ended"
        try:
            if not dry_run:
                mounting.unmount(mount.mountpoint, limit_s=limit_s, mount_id=mount.mount_id)
        except HfsError as error:
            yield Swept("daemon", mount.mountpoint, text, " ".join(str(error).split()))
        else:
            yield Swept("daemon", mount.mountpoint, text)
        return
