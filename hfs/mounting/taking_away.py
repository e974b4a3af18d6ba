"""Taking a mount away from its place, and knowing whether it is dead: no daemon answers on it, and none will.

A mount is what the kernel's table says it is, by its number: a path may name another one a moment later, above all
below a directory of another user. Whether it is dead its connection says, and its keeper: an error of a path may be
SOURCE's, which may be a mount of its own that has died.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time

from hfs.client.client import SOCKET_XATTR
from hfs.mountd.core.errors import HfsError, MountError
from hfs.mountd.supervisor import overlay, table
from hfs.mountd.supervisor.overlay import unmounted
from hfs.mounting import keeper, mountinfo, probe, processes
from hfs.mounting.mountinfo import Mount

DEAD = {errno.ENOTCONN, errno.ECONNABORTED}
"""What a path of a FUSE mount answers when its daemon has gone, or its connection was aborted."""
_AGAIN_S = (0.02, 0.05, 0.1, 0.1)
"""Before the next tries where a mount is in use: a learner that speaks through it (hfs/client/tunnel.py) has one of its
directories open for some milliseconds now and then."""
_ENDING_S = (0.1, 0.3)
"""Before it is asked again where a mount is dead and has a keeper: that one ends in a moment."""
_TOOL_S = 60.0

_MNT_DETACH = 2  # <sys/mount.h>


class Busy(MountError):
    """The mount is in use; the message says by whom."""


def is_dead(mount: Mount, limit_s: float = probe.PROBE_S) -> bool:
    """Whether nobody answers on this mount any more. One that says nothing for `limit_s` is not dead."""
    try:
        # Not a stat: the kernel may answer that from what the dead daemon told it. And not even root is let into
        # another user's mount without allow_other.
        probe.xattr(_reaching(mount.mountpoint), SOCKET_XATTR, limit_s=limit_s, as_user=as_owner(mount))
    except (OSError, HfsError) as error:
        return getattr(error, "errno", None) in DEAD and not has_keeper(mount)
    return False


def _reaching(mountpoint: str) -> str:
    """A path that nobody but the mount can answer for: an overlay over it answers for its root."""
    return f"{mountpoint}/.hfs-{os.urandom(8).hex()}" if table.overlay_lies_at(mountpoint) else mountpoint


def has_keeper(mount: Mount) -> bool:
    """Whether a process keeps this mount, which answers by itself or brings somebody who does."""
    owner = os.geteuid() if mount.owner_uid is None else mount.owner_uid
    for pause_s in (*(_ENDING_S if owner == os.geteuid() else ()), None):
        if all(kept.status.get("device") != mount.device for kept in keeper.of_user(owner)):
            return False
        if pause_s is not None:
            time.sleep(pause_s)
    return True


def as_owner(mount: Mount) -> str | None:
    """Who may look into it, as the configuration has users; None: we may, or are that one."""
    return None if mount.is_for_others else owner_of(mount)


def owner_of(mount: Mount) -> str | None:
    """The user who has mounted it, as the configuration has users; None: we are that one, or cannot become it."""
    if os.geteuid() != 0 or mount.owner_uid in {0, None}:
        return None
    group = re.search(r"(?:^|,)group_id=([0-9]+)", mount.super_options)
    return f"{mount.owner_uid}:{group[1] if group else 0}:"


def clean_stale(mountpoint: str) -> bool:
    """Unmount mounts of hfs at this (canonical) path whose daemon is dead. Whether there were any."""
    found = False
    while (mount := mountinfo.at(mountpoint)) is not None and mount.fstype == mountinfo.HFS_TYPE:
        if not is_dead(mount):
            break
        detach(mountpoint, lazy=True, mount_id=mount.mount_id)  # lazy: a job of the dead daemon may still stand in it
        if mountinfo.at(mountpoint) == mount:
            break
        found = True
    return found


def detach(mountpoint: str, *, lazy: bool, mount_id: int | None = None) -> None:
    """Take the mount on top at this (canonical) path away; with `mount_id` that one and no other: nothing is done where
    it is not there any more. Raises Busy, MountError.

    Lazy: it disappears at once and ends when its last user has gone.
    """
    for pause_s in (*_AGAIN_S, None):
        if _detached(mountpoint, mount_id, lazy=lazy):
            return
        if pause_s is not None:
            time.sleep(pause_s)
    raise busy(mountpoint)


def busy(mountpoint: str, users: str = "") -> Busy:
    """The error that says who uses it. `users`: lines of some more."""
    lines = [f"  {user}" for user in processes.users_of(mountpoint)] + [users] * bool(users)
    lines = lines or ["  (no process that this user may see)"]
    return Busy("\n".join([f"{mountpoint}: in use; end what uses it, or hfs umount --lazy", *lines]))


def _detached(mountpoint: str, mount_id: int | None, *, lazy: bool) -> bool:
    """False: it is in use. Raises MountError."""
    if mount_id in {None, table.number_at(mountpoint)}:
        try:
            overlay.take_away(mountpoint, lazily=lazy)
        except OSError as error:  # others are met below, too
            if error.errno == errno.EBUSY:
                return False
    number = _unmounted(mountpoint, mount_id, _MNT_DETACH if lazy else 0)
    if number == errno.EPERM:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TOOL_S
            )
        except subprocess.TimeoutExpired:
            raise MountError(f"{mountpoint}: {command[0]} does not end within {_TOOL_S:g} s") from None
        except OSError as error:
            raise MountError(f"{mountpoint}: {command[0]}: {error.strerror}; install the package fuse3") from None
        if done.returncode == 0:
            return True
        if "busy" not in done.stderr:
            raise MountError(f"{mountpoint}: {done.stderr.strip() or 'fusermount3 failed'}")
    elif number not in {0, errno.EBUSY}:
        raise MountError(f"{mountpoint}: cannot be unmounted ({os.strerror(number)})")
    return number == 0


def _unmounted(mountpoint: str, mount_id: int | None, flags: int) -> int:
    """The errno of umount2; 0: it is done, or the mount that is meant is not there. Raises MountError where the way to
    it leads through what another plain user serves."""
    try:
        number = unmounted(mountpoint, flags, None if mount_id is None else lambda mount: mount.mount_id == mount_id)
    except NotADirectoryError:  # a link by now: the path of a mount has none
        return 0
    except PermissionError as error:
        raise MountError(f"{mountpoint}: cannot be reached: {error.filename} {error.strerror}") from None
    except OSError as error:
        return error.errno or errno.EIO
    return 0 if number == errno.ESTALE and mount_id is not None else number
