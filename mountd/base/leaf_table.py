"""The table of leaves as its user sees it: regular files with one name that nobody in Python has a node of.

Kept by the data plane, which answers look-ups of their names and counts them (`kernel.leaves`); used by the namespace
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hfs.mountd.base.seen import SeenNames


class Leaf(NamedTuple):
    """One that was taken out of the table."""

    node_id: int
    """As the kernel knows it."""
    directory_id: int
    name: bytes
    look_ups: int
    """That the kernel holds."""
    valid_s: float
    """For how long its name and attributes are good, from now on; not positive: they are past their time."""
    seen: bytes
    """Its attributes, as in `base.seen`."""
    opens: int = 0
    """Handles of it that are open, all with its id for a number."""
    slot: int = -1
    """Where these are counted."""


class LeafTable(Protocol):
    """Directories are known by their node ids. Never waits, but for answers under way."""

    @property
    def runs(self) -> bool:
        """Somebody answers from it; else there is no use in putting anything in."""

    def begin(self, first_id: int, first_kept_id: int) -> None:
        """It is empty, and gives out node ids from this one on, 2**38 at most.

        Those of leaves with an object are `first_kept_id` + its number * 1024 + something less; 0: they are as all.
        """

    def end(self) -> None:
        """Look-ups come to us from now on, but of leaves with an object."""

    def put(
        self, directory_id: int, found: SeenNames, skip: bytearray, *, valid_s: float, objects: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        """Each name is a leaf from now on, for so long, unless its byte of `skip` is 1.

        `objects`: none, or the number of what is staged of each.

        How many are new; the indexes of those that are none now: skipped, or another version is there, which stays.
        """

    def take(self, directory_id: int, name: bytes) -> Leaf | None:
        """It is ours from now on: requests for it come to us."""

    def take_id(self, node_id: int) -> Leaf | None:
        """The same, by the id that the kernel knows."""

    def unknown(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """Those of them that are not leaves, or past their time."""

    def seen(self, directory_id: int, names: Sequence[bytes]) -> bytes | None:
        """What is known of each, as in `base.seen`: ENOENT of those that are not leaves, or past their time. None:
        there are no leaves."""

    def expire(self, directory_ids: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        """All leaves in these directories are past their time from now on. By directory the names of those that the
        kernel holds. In a thread: it goes over all leaves, a tenth of a second for a million."""

    def sweep(self, at_most: int) -> list[int]:
        """Go over a 1024th of it: those go that the kernel does not hold, if they are past their time, or if there are
        more than `at_most` such. The directories of those that went, one for each."""

    def own(self, directory_id: int, names: Sequence[bytes]) -> None:
        """These names are ours: nobody puts leaves for them in a lent directory (`kernel.small_fetches`)."""

    def claim(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """As `own`, but for those that were fetched for a lent directory, or are just now: which are given."""

    def disown(self, directory_id: int, names: Sequence[bytes]) -> None:
        """They are not any more."""

    def lent_leaves(self, directory_id: int) -> int:
        """How many leaves others have put in a lent directory since the last call."""

    def unlend(self, directory_id: int) -> int:
        """It is not lent any more; the same number."""

    @property
    def unheld(self) -> int:
        """How many the kernel does not hold."""
