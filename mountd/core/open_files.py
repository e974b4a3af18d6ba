"""Open files of this process: how many there may be, and what is let go of when the system has none to give.

Caches of descriptors say here what they keep (`add`); whoever is refused one (EMFILE, ENFILE) has them let go of half
of it and tries again. What a call under way holds comes back by itself in a moment, so it is tried more than once.
Refusals of ours say nothing about a file: nobody may take them for "it cannot be read".
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hfs.policies.descriptors import shares

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
    """`limit`: how many files this process may have open. Any thread."""

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
