"""What is mounted where, from /proc/self/mountinfo (proc(5)): nothing here touches a mount, so nothing can hang; and
the way to one that is to be taken away, to that one and to no other.

An overlay of ours (overlay.py) is not what is meant where a mount is looked for: it lies over one, and shows that. Most
here see through it. `hfs.mounting.mountinfo` has more for commands.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

HFS_TYPE = "fuse.hfs"
TABLE = "/proc/self/mountinfo"
_PLAIN_TYPE = "fuse"
"""Of mounts that a container's runtime has made, whatever serves them."""
_ESCAPE = re.compile(r"\\([0-7]{3})")
_OWNER = re.compile(r"(?:^|,)user_id=([0-9]+)")


class Mount(NamedTuple):
    """One line of mountinfo. Texts are decoded with surrogateescape, escapes undone."""

    mount_id: int
    device: str
    """ "MAJOR:MINOR"."""
    mountpoint: str
    options: str
    fstype: str
    source: str
    super_options: str = ""
    root: str = "/"
    """The directory of the file system that is seen there: below its own where only a part of it was bound there."""
    parent_id: int = 0
    """Of the mount that it lies on."""

    @property
    def part(self) -> str:
        """`root` as the daemon of a mount names paths: relative to its own root; empty: all is seen."""
        return self.root.strip("/")

    @property
    def is_our_overlay(self) -> bool:
        """It lies over a mount of hfs, which is what is meant there."""
        return self.fstype == "overlay" and self.source.startswith("hfs#")

    @property
    def may_be_hfs(self) -> bool:
        """Whether it is worth asking whether hfs answers there."""
        return self.fstype in {HFS_TYPE, _PLAIN_TYPE}

    @property
    def owner_uid(self) -> int | None:
        """Who mounted it, where the file system says so: FUSE does. None: the kernel serves it."""
        match = _OWNER.search(self.super_options)
        return int(match[1]) if match else None

    @property
    def is_of_others(self) -> bool:
        """Whether another plain user serves it, who need not answer."""
        return self.owner_uid not in {None, 0, os.geteuid()}

    @property
    def is_for_others(self) -> bool:
        """Whether others than who mounted it may look into it."""
        return "allow_other" in self.super_options.split(",")


def parse(table: str) -> list[Mount]:
    """The mounts of a mountinfo table, in its order. Lines that are no mount are left out."""
    found = []
    for line in table.split("\n"):
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 2:
            continue
        found.append(
            Mount(
                mount_id=int(before[0]),
                device=before[2],
                mountpoint=_plain(before[4]),
                options=before[5],
                fstype=_plain(after[0]),
                source=_plain(after[1]),
                super_options=after[2] if len(after) > 2 else "",
                root=_plain(before[3]),
                parent_id=int(before[1]),
            )
        )
    return found


def read(process: int | str = "self") -> list[Mount]:
    """What this process sees mounted, overlays of ours too. Of another one: raises OSError."""
    with open(TABLE.replace("self", str(process)), encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return parse(file.read())


def device_at(mountpoint: str) -> str | None:
    """ "MAJOR:MINOR" of the mount on top at exactly this path; None: nothing is mounted there."""
    found = _under_overlays(_stack(mountpoint, read()))
    return found.device if found else None


def number_at(mountpoint: str) -> int | None:
    """Of that mount, as mountinfo has it."""
    found = _under_overlays(_stack(mountpoint, read()))
    return found.mount_id if found else None


def places_of(device: str) -> list[str]:
    """Where the mount of this device lies on top in this mount namespace, the one that was mounted last first."""
    table = read()
    places = {mount.mountpoint for mount in table if mount.device == device}
    tops = [found for place in places if (found := _under_overlays(_stack(place, table))) and found.device == device]
    return [mount.mountpoint for mount in sorted(tops, reverse=True)]


def overlay_lies_at(place: str) -> bool:
    """Whether an overlay of ours lies on top there."""
    stack = _stack(place, read())
    return bool(stack) and stack[-1].is_our_overlay


def numbered(number: int) -> Mount | None:
    """The mount of this number; None: it is gone."""
    return next((mount for mount in read() if mount.mount_id == number), None)


def number_of(descriptor: int) -> int:
    """Of the mount that it leads to, as mountinfo has it."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def _under_overlays(stack: list[Mount]) -> Mount | None:
    return next((mount for mount in reversed(stack) if not mount.is_our_overlay), None)


def _stack(place: str, table: list[Mount]) -> list[Mount]:
    """What is mounted there, the uppermost last. The table has them in the order in which they were made, and a mount
    may have been put beneath another."""
    by_number = {mount.mount_id: mount for mount in table if mount.mountpoint == place}
    covered = {mount.parent_id for mount in by_number.values() if mount.parent_id != mount.mount_id}  # a root's own
    above = by_number.pop([number for number in by_number if number not in covered][-1]) if by_number else None
    found: list[Mount] = []
    while above is not None:
        found.append(above)
        above = by_number.pop(above.parent_id, None)
    return found[::-1]


def _plain(text: str) -> str:
    """Undo the octal escapes that the kernel writes for space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
