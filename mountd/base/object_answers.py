"""Whoever answers reads from staged objects without asking the cache, as the cache knows it (`kernel.plane`)."""

from __future__ import annotations

from typing import Protocol


class ObjectAnswers(Protocol):
    """Objects are known by their numbers. Never waits, but for answers under way."""

    def put_object(self, number: int, inode: int, ctime_ns: int, size: int, /) -> bool:
        """This object, one that is a file byte for byte, was found right and is so as long as it has these. False: it
        is not answered with now."""

    def take_object(self, number: int, /) -> None:
        """It is about to change or go: nobody answers with it any more when this returns."""
