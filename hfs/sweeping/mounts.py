"""Dead mounts: no daemon answers on them, and no keeper brings one. Whoever looks below gets `not connected`.

A mount whose daemon hangs or is being started again is not dead. One that processes stand in, or have files of open,
stays: a path that cannot be reached is plainer to them than an empty directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from hfs.client.client import SOCKET_XATTR
from hfs.mountd.base.errors import HfsError
from hfs.mounting import keeper, mountinfo, mounting, probe
from hfs.mounting.mountinfo import Mount
from hfs.sweeping.swept import Swept

_ANSWER_S = 5.0
"""One that does not answer is not dead."""


def sweep(*, dry_run: bool) -> Iterator[Swept]:
    """All that are ours."""
    uid = os.geteuid()
    for mount in mountinfo.hfs_mounts():
        if uid in {0, mount.owner_uid} and _is_dead(mount):
            yield _removed(mount, dry_run=dry_run)


def _is_dead(mount: Mount) -> bool:
    try:
        # Not even root is let into another user's mount without allow_other.
        probe.xattr(mount.mountpoint, SOCKET_XATTR, limit_s=_ANSWER_S, as_user=_owner(mount))
    except TimeoutError:
        return False
    except (OSError, HfsError) as error:
        if getattr(error, "errno", None) not in mounting.DEAD:
            return False
    else:
        return False
    owner = os.geteuid() if mount.owner_uid is None else mount.owner_uid
    return all(kept.status.get("device") != mount.device for kept in keeper.of_user(owner))


def _owner(mount: Mount) -> str | None:
    """As the configuration has users; None: we are that one, or may look as we are."""
    if os.geteuid() in {mount.owner_uid, None} or "allow_other" in mount.super_options.split(","):
        return None
    group = re.search(r"(?:^|,)group_id=([0-9]+)", mount.super_options)
    return f"{mount.owner_uid}:{group[1] if group else 0}:"


def _removed(mount: Mount, *, dry_run: bool) -> Swept:
    where, text = mount.mountpoint, f"dead mount of {mount.source.removeprefix('hfs#')}"
    kept = ""
    if not dry_run:
        try:
            mounting.detach(where, lazy=False)
        except mounting.Busy as busy:
            kept = " ".join(str(busy).split("\n")[1:]).strip() or "in use"
        except HfsError as error:
            kept = str(error)
    return Swept("dead-mount", where, text, kept)
