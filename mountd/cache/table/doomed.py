"""Doomed rows: objects whose rows are being deleted from the index, or were deleted while somebody looked them up.

A look-up in a thread may still see a row that an eviction deletes at that moment. Whoever looks so asks here before it
believes what the thread brought. Plain state on the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class DoomedRows:
    """By object number. `number in doomed`: its row is being deleted just now."""

    def __init__(self) -> None:
        self._deleting: set[int] = set()
        self._watches: list[set[int]] = []

    def __contains__(self, number: int) -> bool:
        return number in self._deleting

    def begin(self, numbers: Collection[int]) -> None:
        """Their rows are about to be deleted; `deleted` or `refused` comes next."""
        self._deleting.update(numbers)

    def refused(self, numbers: Collection[int]) -> None:
        """The index has kept these rows."""
        self._deleting.difference_update(numbers)

    def deleted(self, numbers: Collection[int]) -> None:
        """These rows are gone."""
        self._deleting.difference_update(numbers)
        for gone in self._watches:
            gone.update(numbers)

    @contextmanager
    def watching(self) -> Iterator[set[int]]:
        """The set of what is deleted while the block runs, for a look-up in a thread. It stays as it is afterwards."""
        gone: set[int] = set()
        self._watches.append(gone)
        try:
            yield gone
        finally:
            self._watches.remove(gone)
