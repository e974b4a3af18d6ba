"""What the peers need of a network: small messages in order, and bytes under a tag. MPI is one; tests have another.

Implemented by `peers.mpi` and, in tests, by a fake in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Listener(Protocol):
    """Who hears the other nodes. On the event loop; never waits."""

    def received(self, sender: int, data: bytes) -> None:
        """A small message has come."""

    def lost(self, node: int) -> None:
        """A node has left or failed, and will never answer again."""


class Transport(Protocol):
    """Between this node and `count` - 1 others. Event loop only; no method waits, every callback comes on the loop."""

    number: int
    """Of this node, in [0, count)."""
    count: int
    last_tag: int
    """Tags are in [1, last_tag]."""

    def listen(self, listener: Listener) -> None:
        """From now on this one hears what comes, and before that what has come already. Called once."""

    def leave_nowait(self) -> None:
        """Tell all others that this node goes: they hear that it is lost."""

    def send_nowait(self, to: int, message: bytes) -> None:
        """Send a small message. To a node that has gone it is lost without a word."""

    def give_nowait(self, to: int, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        """Send bytes; they are read until `done`, which for a node that hangs may never be called."""

    def take_nowait(self, giver: int, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        """Receive all of `into`; it may be written to until `done`, which says whether it is whole.

        For a node that hangs or has gone `done` may never be called, and `into` is never free.
        """
