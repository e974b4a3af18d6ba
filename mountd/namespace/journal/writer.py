"""Writing to the journal's log, as long as there is memory for it.

Where a change cannot be entered the journal is given up whole: one without its last change could lie. Without a keeper
there is no log from the beginning. Event loop only, never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hfs.mountd.namespace.journal.log import JournalLog

log = logging.getLogger(__name__)


class JournalWriter:
    """The log, or nothing."""

    def __init__(self, entries: JournalLog | None, given_up: Callable[[], object]) -> None:
        """`given_up` is called when the journal is, in the middle of that `put` or `drop`."""
        self._log = entries
        self._given_up = given_up

    @property
    def on(self) -> bool:
        """What is put is noted."""
        return self._log is not None

    @property
    def memory_bytes(self) -> int:
        """What the log holds."""
        return self._log.memory_bytes if self._log is not None else 0

    def put(self, kind: int, number: int, value: bytes) -> bool:
        """Enter or replace a value (`facts`). False if it is not noted: the journal is given up, then or before."""
        if self._log is None:
            return False
        try:
            self._log.put(kind, number, value)
        except (OSError, ValueError) as error:
            self._give_up(self._log, error)
            return False
        return True

    def drop(self, kind: int, number: int) -> None:
        """End an entry; one that is not there is no error."""
        if self._log is None:
            return
        try:
            self._log.drop(kind, number)
        except (OSError, ValueError) as error:
            self._give_up(self._log, error)

    def _give_up(self, entries: JournalLog, error: Exception) -> None:
        log.error("the journal is given up: %s; after a crash of this daemon what is open answers ESTALE", error)
        entries.clear()
        self._log = None
        self._given_up()
