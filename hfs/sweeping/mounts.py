"""Dead mounts: no daemon answers on them, and no keeper brings one. Whoever looks below gets `not connected`.

A mount whose daemon hangs or is being started again is not dead. One that processes stand in, or have files of open,
stays: a path that cannot be reached is plainer to them than an empty directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from hfs.mountd.core.errors import HfsError
from hfs.mounting import mountinfo, taking_away
from hfs.mounting.mountinfo import Mount
from hfs.sweeping import Swept, TimeForOthers

_ANSWER_S = 5.0
"""One that does not answer is not dead."""


def sweep(*, dry_run: bool, others: TimeForOthers) -> Iterator[Swept]:
    """All that are ours."""
    uid = os.geteuid()
    by_user: dict[int, list[Mount]] = {}
    for mount in mountinfo.hfs_mounts():
        by_user.setdefault(uid if mount.owner_uid is None else mount.owner_uid, []).append(mount)
    for owner in others.each(by_user if uid == 0 else {uid} & by_user.keys()):
        for mount in by_user[owner]:
            if not (left_s := others.left_s(owner)):
                break
            if taking_away.is_dead(mount, min(_ANSWER_S, left_s)):
                yield _removed(mount, dry_run=dry_run)


def _removed(mount: Mount, *, dry_run: bool) -> Swept:
    where, text = mount.mountpoint, f"dead mount of {mount.source.removeprefix('hfs#')}"
    kept = ""
    if not dry_run:
        try:
            taking_away.detach(where, lazy=False, mount_id=mount.mount_id)
        except taking_away.Busy as busy:
            kept = " ".join(str(busy).split("\n")[1:]).strip() or "in use"
        except HfsError as error:
            kept = str(error)
    return Swept("dead-mount", where, text, kept, mount.owner_uid not in {None, os.geteuid()})
