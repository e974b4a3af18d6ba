"""Stdout and stderr of our programs, which never keep a command from its work.

Either may be closed (`2>&-`, cron, batch systems), full (a log on a full disk) or read by nobody any more. What is
closed becomes /dev/null, else the next file that is opened would have its number and get the messages. What cannot be
written is left out, and the exit code is as it would be. Only where what is printed is all that a command
does, an error of stdout is an error: the script of `hfs slurm prolog` must not be empty without a word.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PRINTING = frozenset({
    *("status", "why", "plan", "config", "doctor", "completion", "man", "show"),
    *("list", "du", "simulate", "prolog", "epilog", "job", "task"),
})  # fmt: skip
"""Commands whose result is what they print."""


class CannotPrint(Exception):
    """Stdout has taken no more."""


class _Stream(io.FileIO):
    """Standard output or error. `is_result`: what cannot be written is an error."""

    is_result = False

    def write(self, data: ReadableBuffer, /) -> int:
        """All of it is taken. Raises BrokenPipeError, CannotPrint."""
        try:
            return super().write(data)
        except OSError as error:
            if self.is_result and error.errno == errno.EPIPE:
                raise
            if self.is_result:
                raise CannotPrint(f"stdout cannot be written ({error.strerror}): the output is not whole") from None
            return memoryview(data).nbytes


def guard() -> None:
    """Called once by each program, first."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_nothing(number)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - it stays open
    sys.stdout, sys.stderr = _guarded(1, sys.stdout), _guarded(2, sys.stderr)


def begin(name: str | None) -> None:
    """The command of this name runs now."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stream):
        raw.is_result = name in _PRINTING


def _open_nothing(number: int) -> None:
    try:
        os.fstat(number)  # somebody has opened a file since, whose number it is now
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        os.set_inheritable(number, True)


def _guarded(number: int, before: TextIO | None) -> io.TextIOWrapper:
    encoding, errors = (before.encoding, before.errors) if before is not None else ("utf-8", "backslashreplace")
    raw = _Stream(number, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=number == 2 or raw.isatty()
    )
