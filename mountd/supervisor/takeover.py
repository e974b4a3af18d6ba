"""Another release takes a running mount over: what it wants, what cannot be changed, and how far it is.

The new program is loaded first. Then the daemon that serves is asked to end: it answers what it can and writes down
what it holds, while requests wait in the kernel. Then the new one is given the mount. If it fails, the old program is
started again; the mount outlives either.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hfs.mountd.supervisor.daemons import Daemon, Malformed, Program, field
from hfs.mountd.supervisor.desk import Reply

_LIMIT_S = 30.0
"""For the daemon that goes: what it holds is written to the cache within ten seconds, or fetched again later."""
_FIXED = {
    "source": "SOURCE",
    "mountpoint": "MOUNTPOINT",
    "as_user": "as-user",
    "allow_other": "allow-other",
    "noexec": "noexec",
    "peers": "peers",
}
"""What was fixed when the mount was made, as people call it."""


def _written(value: object) -> str:
    """As one would write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "nothing" if value is None else str(value)


class TakeOverRefused(Exception):
    """It cannot be; the text says why. `code`: 2 for what was given wrongly."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class TakeOver:
    """One attempt."""

    program: Program
    reply: Reply
    limit_s: float = _LIMIT_S
    successor: Daemon | None = None
    """The new program, until it is given the mount."""
    given: Daemon | None = None
    """The same afterwards."""

    @property
    def is_loaded(self) -> bool:
        """The new program waits for the mount."""
        return self.successor is not None and self.successor.imported

    @classmethod
    def begin(cls, request: dict[str, Any], before: Program, reply: Reply) -> TakeOver:
        """From what was asked. Raises TakeOverRefused."""
        try:
            config = field(request, "config", dict)
            given = {"config": config, "origins": field(request, "origins", dict)}
            command, directory = field(request, "daemon", list), field(request, "directory", str)
            environment = field(request, "environment", dict)
            environment = {name: field(environment, name, str) for name in environment}
        except Malformed:
            raise TakeOverRefused("the request is not understood; the two releases are too far apart", 1) from None
        faults = [
            f"{name}: the mount was made with {_written(now)}, and {_written(then)} is asked for"
            for key, name in _FIXED.items()
            if (now := before.given["config"].get(key)) != (then := config.get(key))
        ]
        if faults:
            raise TakeOverRefused("; ".join([*faults, "unmount, and mount again"]), 2)
        environment.setdefault("PATH", os.defpath)
        return cls(Program(command, directory, environment, given), reply)
