"""What the keeper is told of itself: the key `keeper` of the JSON object that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KeeperOrder:
    """Written by hfs/mounting/mounting.py."""

    daemon: list[str]
    """The command that is a daemon."""
    directory: str
    """Where it is started."""
    socket: str | None = None
    """Where the keeper listens."""
    foreground: bool = False
    """Answer in words on stderr, as the command does whose place the keeper has taken."""
    when_mounted: list[str] = field(default_factory=list)
    """A command to run then."""
    resend: bool = True
    """False: as on a kernel that cannot send requests again. For tests."""
    standby: bool = True
