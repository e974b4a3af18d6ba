"""What the keeper is told of itself: the key `keeper` of the JSON object that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    permanent: bool = True
    """The mount stays until it is unmounted; else until the last command that uses it has ended."""
    given: int = -1
    """A descriptor of this process: the connection of a mount that somebody else has made. -1: it is made here."""
    giver: int = -1
    """A descriptor that tells whoever has given it, by being closed, that all has ended; -1: nobody waits for that."""
    foreign_pids: bool = False
    """It may have been mounted in another pid namespace than ours."""
    session: int = 0
    """Of whoever makes a permanent one."""
    linger_s: float = 0.0
    """How long one that is not permanent waits for the next command."""
    inherited: dict[str, Any] | None = None
    """The mount of a keeper that was killed, as it told it (`KeptMount.bequest`), to go on with; `descriptors` besides:
    the numbers of those that come with it."""
    resend: bool = True
    """False: as on a kernel that cannot send requests again. For tests."""
    standby: bool = True
