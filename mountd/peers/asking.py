"""Asking peers: one request, its answer, and what may go wrong between the two.

A peer that says nothing for a while (`peer-timeout`) is left alone for some time, and the source is asked; as long as
it says that its answer comes, it is waited for, since its source is ours and would not be faster. Bytes whose checksum
is wrong are not used. An answer that comes too late is taken off the network into memory of its own: the bytes of a
request that was given up must not land in a buffer that is used again, and a sender must not wait for ever. Event loop
only; knows nothing of which node owns what.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import xxhash
from msgspec import structs

from hfs.mountd.core.errors import shown_path
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.joining import JobLimits
from hfs.mountd.peers.messages import ChunkRequest, Offer, Patience, Refusal, Transport, encode

log = logging.getLogger(__name__)

_HASH_IN_THREAD_BYTES = 256 << 10
"""20 us of xxh3: less than the way into a thread and back."""

REST_S = 30.0
"""So long a node that hung is left alone for the first time: each time one is found, a reader waits."""

_MOST_DOUBLINGS = 6
"""Half an hour."""


class SilentPeers:
    """Which nodes hang, and for how long each is left alone.

    A node that lives and says nothing costs whatever waits for it, so it is not asked again for a while; each time in a
    row that it hangs that while is twice as long, since not every MPI tells who is dead. What one kind of question has
    found out holds for all kinds: `peers.read_slots` shares it. Knows nothing of why a node was asked.
    """

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        self._in_a_row: Counter[int] = Counter()
        """How often a node has hung since it answered last."""

    def rests(self, node: int) -> bool:
        """Whether a node is left alone just now."""
        return trio.current_time() < self._until_s.get(node, -math.inf)

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


class PeerAnswer(enum.Enum):
    """How asking a peer has ended."""

    HIT = enum.auto()
    MISS = enum.auto()
    """The source is next."""
    BUFFER_IN_USE = enum.auto()
    """The source is next, and it must not use the buffer: a peer may still write to it."""
    GONE = enum.auto()
    """That node, before it has given anything."""


class _Asked:
    """A request under way."""

    __slots__ = ("answer", "checksum", "heard", "owner", "size", "taking")

    def __init__(self, owner: int, size: int) -> None:
        self.owner = owner
        self.size = size
        self.heard = trio.Event()
        """Something has come: looked at, and replaced."""
        self.answer: PeerAnswer | None = None
        self.checksum = 0
        self.taking = False
        """The bytes are on their way into the buffer."""


class PeerAsking:
    """`run_in_thread`: as trio.to_thread.run_sync."""

    def __init__(
        self,
        transport: Transport,
        metrics: Metrics,
        silent: SilentPeers,
        run_in_thread: Callable[..., Awaitable[Any]],
        limits: JobLimits,
    ) -> None:
        """A peer that has said nothing for `peer_timeout_s` hangs: the bytes of a chunk take milliseconds, and while it
        waits itself it says so several times in that time."""
        self._transport, self._metrics, self._silent, self._run_in_thread = transport, metrics, silent, run_in_thread
        self._silence_s = limits.peer_timeout_s
        self._total_limit_s = limits.source_timeout_s or math.inf
        self._asked: dict[int, tuple[_Asked, memoryview]] = {}
        self._given_up: dict[int, int] = {}
        """Requests that nobody waits for any more, and their sizes."""
        self._next = 0
        self._warned_s = -math.inf

    async def ask(self, owner: int, request: ChunkRequest, into: memoryview) -> PeerAnswer:
        """Ask `owner`, under a number of our own, and have `into` filled, which is as large. Never raises."""
        number = self._number()
        asked = _Asked(owner, len(into))
        self._asked[number] = asked, into
        self._transport.send_nowait(owner, encode(structs.replace(request, request=number)))
        try:
            with trio.move_on_after(self._total_limit_s):
                while asked.answer is None:
                    with trio.move_on_after(self._silence_s) as silence:
                        await asked.heard.wait()
                    if silence.cancelled_caught and asked.answer is None:
                        self._hangs(owner)
                        break
                    asked.heard = trio.Event()
        finally:
            self._asked.pop(number, None)
            if asked.answer is None and not asked.taking:
                self._given_up[number] = asked.size
        if asked.answer is None:
            return PeerAnswer.BUFFER_IN_USE if asked.taking else PeerAnswer.MISS
        if asked.answer is PeerAnswer.HIT and len(into):
            if len(into) < _HASH_IN_THREAD_BYTES:
                found = xxhash.xxh3_64_intdigest(into)
            else:
                found = await self._run_in_thread(xxhash.xxh3_64_intdigest, into)
            if found != asked.checksum:
                self._fault(f"node {owner} has sent bytes of {shown_path(request.path)} whose checksum is wrong")
                return PeerAnswer.MISS
        return asked.answer

    # -- what comes from the transport --------------------------------------------------------------------------------

    def heard(self, sender: int, message: Offer | Refusal | Patience) -> None:
        """An answer."""
        self._silent.answered(sender)
        number = message.request
        if number in self._given_up:
            self._heard_late(sender, message)
            return
        entry = self._asked.get(number)
        if entry is None or entry[0].owner != sender or entry[0].taking:
            return  # nothing that was asked for, or asked twice
        asked, into = entry
        if isinstance(message, Refusal):
            asked.answer = PeerAnswer.MISS
        elif isinstance(message, Offer):
            if message.size != asked.size:
                self._fault(f"node {sender} offers {message.size} bytes for {asked.size}")
                asked.answer = PeerAnswer.MISS
            elif not asked.size:
                asked.answer = PeerAnswer.HIT
            else:
                asked.checksum = message.checksum
                asked.taking = True

                def came(whole: bool) -> None:
                    asked.answer = PeerAnswer.HIT if whole else PeerAnswer.MISS
                    asked.heard.set()

                self._transport.take_nowait(sender, number, into, came)
        asked.heard.set()

    def lost(self, node: int) -> None:
        """A node has gone: what waits for it need not."""
        for asked, _ in self._asked.values():
            if asked.owner == node and asked.answer is None:
                asked.answer = PeerAnswer.BUFFER_IN_USE if asked.taking else PeerAnswer.GONE
                asked.heard.set()

    def _heard_late(self, sender: int, message: Offer | Refusal | Patience) -> None:
        if isinstance(message, Patience):
            return
        size = self._given_up.pop(message.request)
        if isinstance(message, Offer) and size and message.size == size:
            self._transport.take_nowait(sender, message.request, memoryview(bytearray(size)), lambda _whole: None)

    def _number(self) -> int:
        """A tag that no request under way or given up has."""
        while True:
            self._next = self._next % self._transport.last_tag + 1
            if self._next not in self._asked and self._next not in self._given_up:
                return self._next

    def _hangs(self, node: int) -> None:
        rest_s = self._silent.hangs(node)
        self._fault(f"node {node} has not answered for {self._silence_s:g} s; it is left alone for {rest_s:.0f} s")

    def _fault(self, text: str) -> None:
        self._metrics.add("peer_faults")
        now_s = trio.current_time()
        if now_s >= self._warned_s + 60:
            self._warned_s = now_s
            log.warning("peers: %s; the source is read instead", text)
