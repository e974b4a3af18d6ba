"""What this process may have: memory that may still be taken, and open files."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from hfs.policies.descriptors import shares

_LOOK_EVERY_S = 1.0
_SHARE = 2
"""Half of what is available: the page cache of the source's files and of the staged ones needs the rest."""


log = logging.getLogger(__name__)

Value = TypeVar("Value")

_REFUSALS = frozenset({errno.EMFILE, errno.ENFILE})

_WANTED = 65_536
"""Open files wished for. The hard limit rules."""

_spare: list[int] = []
"""A descriptor that is open only to be closed when another one is needed at once."""

_PAUSES_S = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Between the tries of a thread: what others have open they close within milliseconds, of a source within a second."""


class OpenFiles:
    """Open files of this process: how many there may be, and what is let go of when the system has none to give.

    Caches of descriptors say here what they keep (`add`); whoever is refused one (EMFILE, ENFILE) has them let go of
    half of it and tries again. What a call under way holds comes back by itself in a moment, so it is tried more than
    once. Refusals of ours say nothing about a file: nobody may take them for "it cannot be read".

    `limit`: how many files this process may have open. Any thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shares = shares(limit)
        self.refused = 0
        """How often the system had none."""
        self._lock = threading.Lock()
        self._caches: list[Callable[[], object]] = []

    def add(self, let_go: Callable[[], object]) -> None:
        """`let_go()` closes some descriptors that are only kept, soon; from any thread, and does not wait."""
        self._caches.append(let_go)

    def refuse(self) -> None:
        """The system had none: have the caches let go of some."""
        with self._lock:
            self.refused += 1
        for let_go in self._caches:
            let_go()

    def patiently(self, open_it: Callable[[], Value]) -> Value:
        """In a thread: `open_it()`, tried again while the system has no descriptor. Raises OSError."""
        for pause_s in _PAUSES_S:
            try:
                return open_it()
            except OSError as error:
                if not is_refusal(error):
                    raise
            self.refuse()
            time.sleep(pause_s)
        return open_it()

    def statistics(self) -> dict[str, int]:
        """The limit, and how often the system had no descriptor to give."""
        return {"limit": self.limit, "refused": self.refused}


def is_refusal(error: OSError) -> bool:
    """Whether the system had no descriptor to give, to this process or to all of them."""
    return error.errno in _REFUSALS


def read_small(path: str) -> bytes:
    """What a small file of /proc or /sys says. Raises OSError; not for want of a descriptor: one is kept."""
    try:
        return _read(path)
    except OSError as error:
        if not is_refusal(error):
            raise
        refusal = error
    try:
        os.close(_spare.pop())  # one step for the interpreter: no two threads get it
    except IndexError:
        raise refusal from None
    try:
        return _read(path)
    finally:
        with contextlib.suppress(OSError):
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def of_this_process() -> OpenFiles:
    """With the limit raised as far as it may be; a warning where that is little."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, _WANTED) if hard != resource.RLIM_INFINITY else _WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    found = OpenFiles(limit)
    _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    if found.shares.scarce:
        log.warning(
            "this process may have %d files open, so only %d directories of the source and %d staged files are kept "
            "open; raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=) to 4096 or more",
            limit,
            found.shares.directories,
            found.shares.staged,
        )
    return found


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
    """Memory that may still be taken on this node, or in our control groups, for pages that nobody has asked for yet.

    The kernel protects pages that are used again and again from ones that are merely pushed, but a push of more than
    what is available would only evict itself. A limit may stand at any control group above ours (Slurm sets it on the
    job, Kubernetes on the pod), in either version: the least holds. Never waits: a few small files of /proc and /sys,
    looked at once a second. `clock` in seconds.
    """

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
