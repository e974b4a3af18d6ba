"""What the daemon is told of one epoch, beside what the job is given: ahead of it where that is known, else behind it.

Gets the items that the job was given, and compares them with what was told, some at a time. Where they differ, what was
told is withdrawn and told anew from where the job is, twice; from then on, and where nothing is known ahead, only what
was given out is told, which is what the workers of a loader have taken and not read yet.

Never raises, and never takes long at a time: an order is drawn, and a daemon joined, in steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hfs.training.hint_connection import Steps
from hfs.training.hint_session import Lease
from hfs.training.known_orders import NO_INDICES, IndexOf, Indices, Pieces, as_array, following, indices_of

AT_S = 0.05
"""Between two messages of progress: twenty a second tell the daemon the rate, and cost the job nothing."""
MOST = 1_000_000
"""Samples that are told at a time."""
_BEHIND = 4096
"""Samples before the job's place that are told with those after it: loaders draw ahead of what they read."""
_FIRST_S = 0.05
_STEP_S = 0.002
"""To draw, and to join, before the first index and at each message of progress."""
_SHARE, _FIRST_STEPS = 0.2, 32
"""Of the job's time, to join: what is not large is done at once."""
_ANEW = 2
_PLAIN = frozenset({int, np.int64})
_TOGETHER = 1024
"""Indices that are compared at a time."""
_BURST = 8
"""Indices after which what was given out is told before it is due: then after twice as many, and so on. For a loader
takes some batches at once, and then none until one is done."""
_SAMPLES_A_S = 5_000_000
"""A daemon takes a while for each order, by the samples there are: one that is told every moment is told less often."""
_FREE_S, _PART = 0.05, 0.05
"""To tell what was given out takes so long in all, and that part of the time, and as much of the daemon: as often as it
liked, an epoch of which all was in memory took half as long again as without a hint."""


class ToldOrder:
    """What was told of one epoch, and how far the job is in it."""

    def __init__(
        self,
        taking: Steps[Lease | None],
        trouble: Callable[[Exception], None],
        sampler: object,
        pieces: Pieces | None,
        anew: Callable[[], Pieces | None],
        index_of: IndexOf | None,
    ) -> None:
        """`taking`: what comes to the connection to the daemon, None if there is none. `trouble`: is told what goes
        wrong. `pieces`: what the sampler will give out; None: nobody knows. `anew`: what it will give out from where
        the job is then on."""
        self.given: list[int] = []
        """Indices that the job was given and that were not looked at. Who puts one there looks whether there are `many`
        now, or it is `due`."""
        self.many = 1
        self.due = 0.0
        self.is_over = False
        self.plain: frozenset[type] = frozenset() if index_of else _PLAIN
        """Kinds of items that are an index, and stay what they are. All others are taken in at once."""
        self._taking: Steps[Lease | None] | None = taking
        self._trouble = trouble
        self._stepped = 0.0
        """When the last step of joining ended."""
        self._lease: Lease | None = None
        self._sampler = sampler
        self._pieces = pieces
        self._is_ahead = pieces is not None
        self._anew = anew
        self._index_of = index_of
        self._position = 0
        """Indices that the job was given and that were looked at."""
        self._began_s = time.monotonic()
        self._differed = 0
        self._followed = False
        self._burst = 1
        """With how many indices what was given out is told again before it is due."""
        self._batch = 1
        """Indices in the last item."""
        self._telling_s = -_FREE_S
        """What it took to tell what was given out, less what that may take in any case."""
        self._rests_s = 0.0
        """Until when nothing of it is told."""
        self._order: deque[Indices] = deque()
        self._first, self._drawn, self._told = 0, 0, 0
        """The order as far as it was drawn, from and to which position of the epoch, and to where it was told."""
        self._compared = 0
        self._seen: list[Indices] = []
        """What was given out and could not be compared yet; if nothing is told ahead, what was given out last."""

    def take_in(self, item: Any) -> None:  # noqa: ANN401 - whatever samplers give out
        """The job is given `item`, which may be filled anew after that."""
        try:
            numbers = indices_of(item, self._index_of)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._fail(error)
            return
        self._batch = max(1, len(numbers))
        self.given.extend(numbers)
        if len(self.given) >= self.many or time.monotonic() >= self.due:
            self.look()

    def look(self) -> None:
        """Take in what the job was given."""
        if self.is_over:
            self.given.clear()
            return
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._trouble(error)
        self.end()

    def end(self, *, at_its_end: bool = False) -> None:
        """The epoch has ended, at its end or before. The garbage collector may call this, but not `at_its_end`."""
        if at_its_end and self.given and not self.is_over:
            self.look()
        self.is_over, self.due, self.many = True, 0.0, 0
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.close()
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if at_its_end:
            try:
                self._tell_following(lease)
            except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
                lease.hints.trouble(error)
        self._pieces = None
        lease.over()

    def _look(self) -> None:
        numbers = as_array(self.given)
        self.given.clear()
        self._position += len(numbers)
        self._seen.append(numbers)
        if not self._is_ahead:
            self._seen = [np.concatenate(self._seen)[-_BEHIND:]]
        elif not self._is_same():
            self._differs()
        now = time.monotonic()
        if now >= self.due:
            self._progress(now, begins=self.due <= 0)
        elif not self._is_ahead and len(numbers) >= self.many and self._lease is not None and now >= self._rests_s:
            self._burst *= 2
            self._tell_given(self._lease)
        if not self.is_over:
            self.many = _TOGETHER if self._is_ahead else self._burst

    def _progress(self, now: float, *, begins: bool) -> None:
        """Now and then: draw on, tell what is worth it, and say how far the job is."""
        lease = self._join(now)
        if self._taking is None and (lease is None or not lease.is_heard()):
            self.end()
            return
        if self._is_ahead:
            self._draw(time.monotonic() + (_FIRST_S if begins else _STEP_S))
            if not self._is_same():
                self._differs()
            elif lease is not None and self._is_worth_telling():
                self._tell(lease)
        at_s = AT_S
        if lease is not None:
            if not self._is_ahead and now >= self._rests_s:
                self._tell_given(lease)
                self._burst = self._batch if self._batch > 1 else _BURST
                at_s = max(AT_S, lease.samples / _SAMPLES_A_S)
            elif self._is_ahead and not begins:
                self._tell_following(lease)
            lease.at(self._position)
        self.due = time.monotonic() + at_s

    def _join(self, now: float) -> Lease | None:
        """The connection to the daemon, which is made in steps."""
        if self._taking is not None:
            share_s = _SHARE * (now - self._stepped) if self._stepped else _FIRST_S
            until, steps = now + min(max(share_s, _STEP_S), _FIRST_S), 0 if self._stepped else _FIRST_STEPS
            try:
                while (steps := steps - 1) >= 0 or time.monotonic() < until:
                    if next(self._taking):
                        break
            except StopIteration as end:
                self._taking, self._lease = None, end.value
            self._stepped = time.monotonic()
        return self._lease

    # --- Ahead

    def _is_same(self) -> bool:
        """Whether the job was given what was drawn, as far as that is known."""
        end = min(self._position, self._drawn)
        seen = np.concatenate(self._seen or [NO_INDICES])
        count = max(0, end - self._compared)
        if count and not np.array_equal(self._between(self._compared, end), seen[:count]):
            return False
        self._compared += count
        self._seen = [seen[count:]] if len(seen) > count else []
        while self._order and self._first + len(self._order[0]) <= self._compared - _BEHIND:
            self._first += len(self._order.popleft())
        # There is more than was drawn, or it comes faster than it is drawn.
        return len(seen) == count or (self._pieces is not None and len(seen) - count <= MOST)

    def _between(self, first: int, end: int) -> Indices:
        parts, at = [NO_INDICES], self._first
        for piece in self._order:
            if at < end and at + len(piece) > first:
                parts.append(piece[max(0, first - at) : end - at])
            at += len(piece)
        return np.concatenate(parts)

    def _draw(self, until: float) -> None:
        while self._pieces is not None and self._drawn < self._position + MOST:
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            elif not len(piece):
                break  # it goes on only when the job has its first index
            else:
                self._order.append(piece)
                self._drawn += len(piece)
            if time.monotonic() >= until:
                break

    def _is_worth_telling(self) -> bool:
        """All that is left, or twice as much as what was told, or half of what may be told at a time."""
        left = self._drawn - self._position
        if self._pieces is None and left <= MOST:
            return self._told < self._drawn
        told, may = max(0, self._told - self._position), min(left, MOST)
        return may > told and (may >= 2 * told or (may == MOST and told <= MOST // 2))

    def _tell(self, lease: Lease) -> None:
        first = max(self._first, self._position - _BEHIND)
        self._told = min(self._drawn, self._position + MOST)
        lease.tell(first, self._between(first, self._told), only_given=False)

    def _differs(self) -> None:
        """The job was given something else than was told."""
        self._differed += 1
        if self._lease is not None:
            self._lease.withdraw()
        self._pieces = None
        if self._differed <= _ANEW:
            self._pieces = self._anew()
        self._is_ahead = self._pieces is not None
        self._order.clear()
        self._first = self._drawn = self._told = self._compared = self._position
        self._seen = [] if self._is_ahead else [np.concatenate(self._seen)[-_BEHIND:]]
        self.due = 0.0

    # --- Behind

    def _tell_given(self, lease: Lease) -> None:
        began = time.monotonic()
        for seen in self._seen:
            lease.tell(self._position - len(seen), seen, only_given=True)
        self._telling_s += time.monotonic() - began
        self._rests_s = self._began_s + self._telling_s / _PART

    # --- The next epoch

    def _tell_following(self, lease: Lease) -> None:
        """Once, when all of this epoch was told; not before the training has its first samples."""
        if self._followed or not self._is_ahead or self._pieces is not None or self._index_of:
            return
        if not self._told or self._told < self._drawn:
            return
        self._followed = True
        # Again the same epoch: nobody calls set_epoch, so it stays as it is.
        pieces = following(self._sampler, lease.epoch if lease.again else lease.epoch + 1)
        if pieces is None:
            return
        parts, size = [NO_INDICES], 0
        for piece in pieces:
            parts.append(piece[: MOST - size])
            size += len(parts[-1])
            if size >= MOST:
                break
        lease.tell_following(np.concatenate(parts))
