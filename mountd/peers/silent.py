"""Silent peers: which nodes hang, and for how long each is left alone.

A node that lives and says nothing costs whatever waits for it, so it is not asked again for a while; each time in a row
that it hangs that while is twice as long, since not every MPI tells who is dead. What one kind of question has found
out holds for all kinds: one of these is shared by `peers.asking` and `peers.read_slots`.

Event loop only; knows nothing of why a node was asked.
"""

import math
from collections import Counter

import trio

REST_S = 30.0
"""So long a node that hung is left alone for the first time: each time one is found, a reader waits."""

_MOST_DOUBLINGS = 6
"""Half an hour."""


class SilentPeers:
    """The nodes that are left alone."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        self._in_a_row: Counter[int] = Counter()
        """How often a node has hung since it answered last."""

    def rests(self, node: int) -> bool:
        """Whether a node is left alone just now."""
        until_s = self._until_s.get(node, -math.inf)
        if trio.current_time() < until_s:
            return True
        self._until_s.pop(node, None)
        return False

    def hangs(self, node: int) -> float:
        """A node has said nothing for too long. Returns how many seconds it is left alone for, from its first silence
        on: that of several questions at once is one."""
        if not self.rests(node):
            rest_s = REST_S * 2 ** self._in_a_row[node]
            self._in_a_row[node] = min(self._in_a_row[node] + 1, _MOST_DOUBLINGS)
            self._until_s[node] = trio.current_time() + rest_s
        return self._until_s[node] - trio.current_time()

    def answered(self, node: int) -> None:
        """A node has answered: its next silence is its first. It still rests: it may have answered late."""
        self._in_a_row.pop(node, None)

    def lost(self, node: int) -> None:
        """A node has gone, or come back."""
        self._until_s.pop(node, None)
