"""What the journal notes of the whole mount: that it is stateless, and what SOURCE's file system is called.

Both hold as long as the mount lives, whichever daemon serves it. Event loop only, never waits.
"""

from __future__ import annotations

from hfs.mountd.core.version import is_lasting
from hfs.mountd.namespace.journal.facts import MOUNT, MountFact
from hfs.mountd.namespace.journal.writer import JournalWriter


class NotedMount:
    """Begins with `fact`, as an earlier daemon has left it."""

    def __init__(self, writer: JournalWriter, fact: MountFact) -> None:
        self._writer = writer
        self._fact = fact

    @property
    def stateless(self) -> bool:
        """The kernel was told to open without asking."""
        return self._fact.stateless

    def becomes_stateless(self) -> None:
        """The kernel is told to open without asking."""
        if not self._fact.stateless:
            self._note(self._fact._replace(stateless=True))

    def source_id(self, found: str) -> str:
        """What SOURCE's file system is called as long as the mount lives; `found`: by this daemon."""
        if not self._writer.on or is_lasting(found):
            return found
        if not self._fact.source_id:
            self._note(self._fact._replace(source_id=found))
        return self._fact.source_id

    def _note(self, fact: MountFact) -> None:
        self._fact = fact
        self._writer.put(MOUNT, 0, fact.value())
