"""What `hfs status` tells of hints: the learners that have told their order, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.core.caller import Credentials
from hfs.mountd.hints.learners import Learners


@dataclass(frozen=True, slots=True)
class HintsStatus:
    """The key `hints`."""

    learners: Learners

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        return {"hints": self.learners.shown()}

    def of_reader(self, reader: Credentials) -> dict[str, object]:
        """The same, of what one user's own learners have said."""
        return {"hints": self.learners.shown(reader)}
