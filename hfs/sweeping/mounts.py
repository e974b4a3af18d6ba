"""Dead mounts: no daemon answers on them, and no keeper brings one. Whoever looks below gets `not connected`.

A mount whose daemon hangs or is being started again is not dead. One that processes stand in, or have files of open,
stays: a path that cannot be reached is plainer to them than an empty directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from hfs.mountd.base.errors import HfsError
from hfs.mounting import mountinfo, taking_away
from hfs.mounting.mountinfo import Mount
from hfs.sweeping.swept import Swept

_ANSWER_S = 5.0
"""One that does not answer is not dead. For all mounts of a user together: who likes has many that say nothing."""


def sweep(*, dry_run: bool) -> Iterator[Swept]:
    """All that are ours."""
    uid = os.geteuid()
    left_s: dict[int | None, float] = {}
    for mount in mountinfo.hfs_mounts():
        owner = mount.owner_uid
        limit_s = left_s.get(owner, _ANSWER_S)
        if uid not in {0, owner} or limit_s <= 0:
            continue
        since_s = time.monotonic()
        is_dead = taking_away.is_dead(mount, limit_s)
        if owner != uid:
            left_s[owner] = limit_s - (time.monotonic() - since_s)
        if is_dead:
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
