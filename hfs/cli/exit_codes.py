"""The exit codes of `hfs` as names. Scripts rely on the numbers; what each means is told in hfs/cli/__init__.py."""

from __future__ import annotations

from hfs.client.control_socket import Refused
from mountd.base.errors import ConfigError, HfsError

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


def code_of(error: HfsError) -> int:
    """The code that a command ends with after this error."""
    if isinstance(error, Refused):
        return error.code
    return USAGE if isinstance(error, ConfigError) else FAILED
