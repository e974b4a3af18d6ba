"""What `hfs status` tells of hints: the learners that have told their order, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass

from mountd.hints.learners import Learners


@dataclass(frozen=True, slots=True)
class HintsStatus:
    """The key `hints`."""

    learners: Learners

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        return {"hints": self.learners.shown()}
