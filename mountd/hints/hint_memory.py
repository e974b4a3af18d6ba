"""How much memory hints take in all: layouts, orders, and what has come of them so far. More is refused.

One user who is neither root nor the owner of the mount has half of it at most, and all of these together three
quarters, so that there is room for others, and for root whatever they do.

Event loop only.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from hfs.mountd.core.caller import Credentials
from hfs.mountd.wire.layout import LayoutError

_MAX_MEMORY_BYTES = 2 << 30
"""Layouts and orders together: eight million files of fifty bytes and eight learners that read an eighth of them each,
in this epoch and the next, take 1.5 GB."""


class _Holder(Protocol):
    @property
    def memory_bytes(self) -> int:
        """What it takes now."""

    @property
    def reader(self) -> Credentials | None:
        """Of which user it is; None: of root or the owner."""


@dataclass(eq=False, frozen=True)
class _Reserved:
    memory_bytes: int
    reader: Credentials | None


class HintMemory:
    """The plans and sessions that hold memory."""

    def __init__(self) -> None:
        self._holders: set[_Holder] = set()

    def add(self, holder: _Holder) -> None:
        """From now on what it takes is counted."""
        self._holders.add(holder)

    def remove(self, holder: _Holder) -> None:
        """It has gone."""
        self._holders.remove(holder)

    @contextlib.contextmanager
    def reserved(self, more_bytes: int, reader: Credentials | None) -> Iterator[None]:
        """So much more of `reader` is taken while the block runs. Raises LayoutError as `check_room`."""
        self.check_room(more_bytes, reader)
        reserved = _Reserved(more_bytes, reader)
        self.add(reserved)
        try:
            yield
        finally:
            self.remove(reserved)

    def check_room(self, more_bytes: int, reader: Credentials | None) -> None:
        """Raise LayoutError if so much more of `reader` would be more than is kept of hints in all, or of one user."""
        _check(sum(holder.memory_bytes for holder in self._holders) + more_bytes, _MAX_MEMORY_BYTES, "")
        if reader is None:
            return
        of_user: Counter[int] = Counter()
        for holder in self._holders:
            if holder.reader is not None:
                of_user[holder.reader.uid] += holder.memory_bytes
        _check(of_user[reader.uid] + more_bytes, _MAX_MEMORY_BYTES // 2, " of one user")
        _check(of_user.total() + more_bytes, _MAX_MEMORY_BYTES * 3 // 4, " of users who do not own the mount")


def _check(wanted_bytes: int, most_bytes: int, of: str) -> None:
    if wanted_bytes > most_bytes:
        raise LayoutError(f"hints of {wanted_bytes} bytes are more than the {most_bytes} that are kept{of}")
