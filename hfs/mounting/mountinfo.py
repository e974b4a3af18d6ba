"""What is mounted where, as commands ask it: nothing here touches a mounted file system, so nothing can hang.

To be asked before a MOUNTPOINT is looked at in any other way. A path is compared with the table as text; `canonical`
makes that text without a look below any mount.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from hfs.mountd.supervisor.table import HFS_TYPE, Mount, parse, read

IN_MEMORY = {"tmpfs", "ramfs"}
"""Types of what is gone with the machine's power."""
_DESCRIPTOR = re.compile("/dev/fd/[0-9]+(/|$)")
_MAX_LINKS = 40
"""As in the kernel's own path walk."""


def mounts(process: int | str = "self") -> list[Mount]:
    """What this process sees mounted. Where mounts are stacked, the later one lies on top. Of another one: raises
    OSError."""
    return [mount for mount in read(process) if not mount.is_our_overlay]


def lies_in_overlay(path: str) -> bool:
    """Whether what is seen at this (canonical) path is an overlay of ours."""
    mount = enclosing(path, read())
    return mount is not None and mount.is_our_overlay


def below_overlay(path: str) -> tuple[str, str | None]:
    """The (canonical) path where no overlay of ours covers it, if its mount is seen elsewhere too, and None; else the
    path, and the mountpoint that is covered: what an overlay shows of its root is not the mount's."""
    table = read()
    covered = {mount.mountpoint for mount in table if mount.is_our_overlay}
    table = [mount for mount in table if not mount.is_our_overlay]
    mount = enclosing(path, table) if covered else None
    if mount is None or mount.mountpoint not in covered:
        return path, None
    others = [other for other in table if other.device == mount.device and other.mountpoint not in covered]
    if not others:
        return path, mount.mountpoint
    return others[0].mountpoint + path[len(mount.mountpoint) :], None


def hfs_mounts(table: Iterable[Mount] | None = None) -> list[Mount]:
    """The mounts of hfs, one for each mountpoint: those on top."""
    top = {mount.mountpoint: mount for mount in (mounts() if table is None else table)}
    return [mount for mount in top.values() if mount.fstype == HFS_TYPE]


def in_fair_order(mounts: Iterable[Mount]) -> list[Mount]:
    """Our own and root's first, then one of each other user, and so on: whoever has many hides nobody else's."""
    number: Counter[int] = Counter()
    turns: list[tuple[int, Mount]] = []
    for mount in mounts:
        owner = mount.owner_uid
        if owner is not None and mount.is_of_others:
            number[owner] += 1
        turns.append((number[owner] if owner is not None else 0, mount))
    return [mount for _, mount in sorted(turns, key=lambda turn: turn[0])]


def at(mountpoint: str, table: Iterable[Mount] | None = None) -> Mount | None:
    """The mount on top at exactly this (canonical) path."""
    found = [mount for mount in (mounts() if table is None else table) if mount.mountpoint == mountpoint]
    return found[-1] if found else None


def enclosing(path: str, table: Iterable[Mount] | None = None) -> Mount | None:
    """The mount that the (canonical) path lies in: the longest mountpoint above it, on top."""
    found: Mount | None = None
    for mount in mounts() if table is None else table:
        inside = path == mount.mountpoint or path.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and (found is None or len(mount.mountpoint) >= len(found.mountpoint)):
            found = mount
    return found


def canonical(path: str, table: Iterable[Mount] | None = None) -> str:
    """The absolute path without symlinks, as mountinfo would name it.

    Goes down component by component and stops looking at the first that lies in a mount of hfs, or in one that another
    plain user serves: what is below stays as it was written (whoever answers there may be dead or hang). Missing
    components stay too, and so does /dev/fd/N, which names a connection. Raises OSError (ELOOP) only.
    """
    if _DESCRIPTOR.match(os.path.normpath(path)):
        return os.path.normpath(path)
    table = list(mounts() if table is None else table)
    served = {mount.mountpoint for mount in table if mount.is_of_others}
    served.update(mount.mountpoint for mount in hfs_mounts(table))
    todo = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    done, links = "", 0
    while todo:
        part = todo.pop()
        if part == "..":  # only from a symlink's text: abspath has removed the others
            done = done.rpartition("/")[0]
            continue
        step = f"{done}/{part}"
        if step in served:
            return "/".join([step, *reversed(todo)])
        try:
            text = os.readlink(step)
        except OSError:  # no symlink, or not there
            done = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(40, os.strerror(40), path)
        if text.startswith("/"):
            done = ""
        todo.extend(piece for piece in reversed(text.split("/")) if piece not in {"", "."})
    return done or "/"
