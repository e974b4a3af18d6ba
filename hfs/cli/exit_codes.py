"""The exit codes of all programs, as names and as the one table of what they mean. Scripts rely on the numbers.

What counts as failed, and what as wrong usage, is told in hfs/cli/__init__.py. docs/commands.md and the man pages show
`TABLE`.
"""

from __future__ import annotations

from typing import NamedTuple

from hfs.client.control_socket import Refused
from hfs.mountd.core.errors import ConfigError, HfsError

DONE = 0
FAILED = 1
USAGE = 2
PARTLY = 3
RUN_FAILED = 125
LIMITS = 1
"""Of `hfs doctor`: a mount works, slower or with limits."""
CANNOT_WORK = 3
"""Of `hfs doctor`."""
CANNOT_EXECUTE = 126
NOT_FOUND = 127
SIGNALLED = 128


class Meaning(NamedTuple):
    """What an exit code of each program means; empty: it never ends with it."""

    code: str
    hfs: str = ""
    """hfs and hfs-hint, but for those below."""
    doctor: str = ""
    run: str = ""
    """`hfs run`; `hfs-hint record -- CMD` ends with the code of CMD, too."""
    helper: str = ""
    """mount.fuse.hfs: the codes of mount(8)."""


_OWN = "the command's own"
TABLE = (
    Meaning("0", "done", "nothing is wrong", _OWN, "mounted"),
    Meaning("1", "failed", "mounts work, with limits", _OWN, "what was given cannot be"),
    Meaning("2", "wrong usage", "wrong usage", _OWN, "the system lacks something"),
    Meaning("3", "partly done", "mounts cannot work, or one does not", _OWN),
    Meaning("32", helper="the mount failed"),
    Meaning("125", run="hfs failed"),
    Meaning("126, 127", run="the command cannot be executed; was not found"),
    Meaning("128 + N", run="signal N ended the command"),
)


def code_of(error: HfsError) -> int:
    """The code that a command ends with after this error."""
    if isinstance(error, Refused):
        return error.code
    return USAGE if isinstance(error, ConfigError) else FAILED
