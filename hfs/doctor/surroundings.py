"""`Surroundings`: what the checks look at; tests hand over other places and another user. `CheckResult`: one thing that
was looked at, how it stands, and the remedy in the same line.

Nothing is looked at when it is made but the table of mounts, which cannot hang.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from hfs.mountd.core.config.key import SourceUser
from hfs.mounting import mountinfo
from hfs.mounting.mountinfo import Mount


class Level(Enum):
    """How much it matters."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    LIMIT = "limit"
    """Mounts work, slower or with limits that the text names."""
    FAULT = "fault"
    """A mount cannot work, or one that is there does not."""


class CheckResult(NamedTuple):
    """`text` says what and where; `remedy`, of limits and faults, what to do about it."""

    check: str
    """What was looked at: a name that stays the same from release to release."""
    level: Level
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Text and remedy."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


def good(check: str, text: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, Level.GOOD, text)


def note(check: str, text: str, remedy: str = "") -> CheckResult:
    """Nothing is wrong."""
    return CheckResult(check, Level.NOTE, text, remedy)


def limit(check: str, text: str, remedy: str) -> CheckResult:
    """It works, but slower or with limits."""
    return CheckResult(check, Level.LIMIT, text, remedy)


def fault(check: str, text: str, remedy: str) -> CheckResult:
    """It does not work."""
    return CheckResult(check, Level.FAULT, text, remedy)


def worst(findings: Iterable[CheckResult]) -> Level:
    """The level that matters most; GOOD where nothing is wrong."""
    order = list(Level)
    found = max((order.index(finding.level) for finding in findings), default=0)
    return order[found] if order[found] is not Level.NOTE else Level.GOOD


ANSWER_S = 5.0
"""A busy metadata server answers within a second or two."""
_CAP_SYS_ADMIN = 21  # <linux/capability.h>


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Paths are absolute. `source` and `cache`: what a mount would be given, if that is known."""

    uid: int
    release: str
    """Of the kernel."""
    table: tuple[Mount, ...]
    device: str = "/dev/fuse"
    fuse_config: str = "/etc/fuse.conf"
    proc: str = "/proc"
    search_path: str | None = None
    """Where programs are looked for; None: as PATH says."""
    source: str | None = None
    cache: str | None = None
    cache_size_bytes: int | None = None
    allow_other: bool = False
    as_user: str | None = None
    """Who SOURCE is read as, as the configuration has it; None: as `uid`."""
    answer_s: float = ANSWER_S

    @property
    def status(self) -> dict[str, str]:
        """The lines of /proc/self/status. Empty where that cannot be read."""
        return dict(line.split(":\t", 1) for line in self.lines("self/status") if ":\t" in line)

    @property
    def may_mount(self) -> bool:
        """Whether mount(2) and passthrough are allowed here: CAP_SYS_ADMIN."""
        return bool(int(self.status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1)

    @property
    def reader_uid(self) -> int:
        """Who SOURCE is read as."""
        return self.uid if self.as_user is None else SourceUser.of(self.as_user).uid

    @property
    def in_user_namespace(self) -> bool:
        """Whether root here is root of a user namespace only."""
        mapped = self.lines("self/uid_map")
        return bool(mapped) and mapped[0].split() != ["0", "0", "4294967295"]

    def without_source(self) -> Surroundings:
        """The same, where SOURCE is not to be looked at."""
        return replace(self, source=None)

    def lines(self, name: str) -> list[str]:
        """Of a file below `proc`; none where it cannot be read."""
        try:
            with open(f"{self.proc}/{name}", encoding="utf-8", errors="surrogateescape") as file:
                return file.read().splitlines()
        except OSError:
            return []

    def number(self, name: str) -> int | None:
        """Of a file below `proc` that holds one; None where there is no such file."""
        lines = self.lines(name)
        return int(lines[0]) if lines and lines[0].strip().lstrip("-").isdigit() else None


def here(
    source: str | None = None,
    cache: str | None = None,
    *,
    cache_size_bytes: int | None = None,
    allow_other: bool = False,
    as_user: str | None = None,
) -> Surroundings:
    """This process's."""
    return Surroundings(
        uid=os.geteuid(),
        release=os.uname().release,
        table=tuple(mountinfo.mounts()),
        source=None if source is None else os.path.abspath(source),
        cache=None if cache is None else os.path.abspath(cache),
        cache_size_bytes=cache_size_bytes,
        allow_other=allow_other,
        as_user=as_user,
    )
