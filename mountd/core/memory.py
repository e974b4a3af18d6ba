"""Memory that may still be taken on this node, or in our control groups, for pages that nobody has asked for yet.

The kernel protects pages that are used again and again from ones that are merely pushed, but a push of more than what
is available would only evict itself. A limit may stand at any control group above ours (Slurm sets it on the job,
Kubernetes on the pod), in either version: the least holds. Never waits: a few small files of /proc and /sys, looked at
once a second.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hfs.mountd.core.open_files import read_small

_LOOK_EVERY_S = 1.0
_SHARE = 2
"""Half of what is available: the page cache of the source's files and of the staged ones needs the rest."""


class ControlGroup(NamedTuple):
    """A control group that we are in, and the names that its version gives to what we ask."""

    path: str
    limits: tuple[str, ...]
    usage: str
    inactive: str
    """The line of memory.stat with the pages that the kernel would drop first, those of groups below included."""


_Version = tuple[tuple[str, ...], str, str]
_V2: _Version = (("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1: _Version = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


class Memory:
    """What is available. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups = groups_of("/proc/self")
        self._looked_s = -math.inf
        self._available_bytes = 0

    def available_bytes(self) -> int:
        """What is available now."""
        return available_bytes("/proc/meminfo", self._groups)

    def has_room(self, size: int) -> bool:
        """Whether a file of `size` bytes may be put into the page cache as a whole."""
        now_s = self._clock()
        if now_s >= self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now_s
            self._available_bytes = self.available_bytes()
        return size * _SHARE <= self._available_bytes


def available_bytes(meminfo: str, groups: Sequence[ControlGroup]) -> int:
    """MemAvailable of `meminfo`, or what one of the control groups may still have if that is less."""
    available = _field(meminfo, "MemAvailable", 1024)
    for group in groups:
        try:
            free = _limit(group) - _number(f"{group.path}/{group.usage}")
            if free < available:  # the sums of memory.stat are dear where there are many processors
                inactive = _field(f"{group.path}/memory.stat", group.inactive, 1)
                available = max(0, min(available, int(free) + inactive))
        except (OSError, ValueError):
            continue  # no such controller there, or not for us to see
    return available


def groups_of(process: str) -> list[ControlGroup]:
    """The control groups that the process (a folder of /proc) is in, the innermost first, and all above them."""
    return [ControlGroup(path, *(_V2 if unified else _V1)) for path, unified in group_folders(process, "memory")]


def group_folders(process: str, controller: str) -> list[tuple[str, bool]]:
    """The folders of the control groups with this controller, as `groups_of`, and whether each is of version 2."""
    found: list[tuple[str, bool]] = []
    mounts = _mounts(f"{process}/mountinfo", controller)
    for line in _lines(f"{process}/cgroup"):
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        mount = mounts.get("cgroup2" if unified else "cgroup")
        if mount is None or not (unified or controller in controllers.split(",")):
            continue
        root, top = mount
        inside = f"{path}/".startswith(f"{root.rstrip('/')}/")  # else a container that sees only what it may
        below = path[len(root.rstrip("/")) :].strip("/") if inside else ""
        parts = [part for part in below.split("/") if part]
        found += [("/".join([top, *parts[:depth]]), unified) for depth in range(len(parts), -1, -1)]
    return found


def _mounts(path: str, controller: str) -> dict[str, tuple[str, str]]:
    """Type of file system -> (what of it is mounted, where), for the hierarchies with the controller."""
    found: dict[str, tuple[str, str]] = {}
    for line in _lines(path):
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            found.setdefault(kind, (root, point))
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            return lines.read().splitlines()
    except OSError:
        return []


def _limit(group: ControlGroup) -> float:
    """What the group may have, bytes. The root of all has no limit, and no file that says so."""
    found = [_number(f"{group.path}/{name}") for name in group.limits if os.path.exists(f"{group.path}/{name}")]
    return min(found, default=math.inf)


def _number(path: str) -> float:
    text = read_small(path).decode("ascii").strip()
    return math.inf if text == "max" else int(text)


def _field(path: str, name: str, unit: int) -> int:
    found = re.search(rf"^{name}:?\s+(\d+)", read_small(path).decode("ascii"), re.MULTILINE)
    return int(found[1]) * unit if found else 0
