"""Waits: how readers have waited for the source, or for the disk of the cache."""

from __future__ import annotations

from typing import NamedTuple


class Waits(NamedTuple):
    """Of the readers of one mount, since its daemon began."""

    waits: int
    """Times that one has waited, and come to an end of it."""
    waited_ns: int
    """So long in all."""
    waiting: int
    """Those that do so now."""

    def beside(self, others: Waits) -> Waits:
        """Of both together."""
        return Waits(self.waits + others.waits, self.waited_ns + others.waited_ns, self.waiting + others.waiting)

    def begun(self) -> Waits:
        """One more waits."""
        return self._replace(waiting=self.waiting + 1)

    def ended(self, waited_ns: int) -> Waits:
        """One does not any more, after so long."""
        return Waits(self.waits + 1, self.waited_ns + waited_ns, self.waiting - 1)
