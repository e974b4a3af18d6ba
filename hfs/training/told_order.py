"""What the daemon is told of one epoch, beside what the job is given: ahead of it where that is known, else behind it.

Gets each item that the job is given, and compares it with what was told. Where they differ, what was told is withdrawn
and told anew from where the job is, twice; from then on, and where nothing is known ahead, only what was given out is
told, which is what the workers of a loader have taken and not read yet.

Never raises, and never takes long at a time: an order is drawn, and told, in steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hfs.training.hint_session import Lease
from hfs.training.known_orders import Pieces, following
from hfs.training.sampler_order import NO_INDICES, IndexOf, Indices, as_array, indices_of

AT_S = 0.05
"""Between two messages of progress: twenty a second tell the daemon the rate, and cost the job nothing."""
MOST = 1_000_000
"""Samples that are told at a time."""
_BEHIND = 4096
"""Samples before the job's place that are told with those after it: loaders draw ahead of what they read."""
_FIRST_S = 0.05
_STEP_S = 0.002
"""To draw, before the first index and at each message of progress."""
_ANEW = 2
_PLAIN = {int, np.int64}
"""What is compared as it is; any other item is taken apart first."""
_BURST = 8
"""Indices after which what was given out is told before it is due: then after twice as many, and so on. For a loader
takes some batches at once, and then none until one is done."""
_SAMPLES_A_S = 5_000_000
"""A daemon takes a while for each order, by the samples there are: one that is told every moment is told less often."""


class ToldOrder:
    """What was told of one epoch, and how far the job is in it."""

    def __init__(
        self,
        take: Callable[[], Lease | None],
        sampler: object,
        pieces: Pieces | None,
        anew: Callable[[], Pieces | None],
        index_of: IndexOf | None,
        *,
        is_slow: bool,
    ) -> None:
        """`take`: what gives the connection to the daemon, None if there is none; `is_slow`: it takes a while, and the
        job has its first index before. `pieces`: what the sampler will give out; None: nobody knows. `anew`: what it
        will give out from where the job is then on."""
        self._take: Callable[[], Lease | None] | None = take
        self._is_slow = is_slow
        self._lease: Lease | None = None
        self._sampler = sampler
        self._pieces = pieces
        self._is_ahead = pieces is not None
        self._anew = anew
        self._index_of = index_of
        self._position = 0
        """Indices that the job was given."""
        self._differed = 0
        self._followed = False
        self._due = 0.0
        self._since, self._burst = 0, 1
        """Items since what was given out was told, and with how many it is told again before it is due."""
        self._told, self._first, self._end = NO_INDICES, 0, 0
        """What was told ahead, and from where to where in the epoch that is."""
        self._drawn: deque[Indices] = deque()
        self._drawn_end = 0
        """The order after what was told, and where it ends."""
        self._given: list[int] = []
        """What was given out and could not be compared yet; if nothing is told ahead, what was given out last."""

    def given(self, item: Any) -> None:  # noqa: ANN401 - whatever samplers give out
        """The job is given `item`."""
        if self._take is None and self._lease is None:
            return
        try:
            self._note(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        lease = self._listening()
        if lease is not None:  # else that was said
            lease.hints.trouble(error)
        self.end()

    def _listening(self) -> Lease | None:
        """The connection to the daemon, which is made at the first need."""
        if self._take is not None:
            take, self._take = self._take, None
            self._lease = take()
        return self._lease

    def end(self, *, at_its_end: bool = False) -> None:
        """The epoch has ended, at its end or before. The garbage collector may call this, but not `at_its_end`."""
        if at_its_end and self._position:
            self._listening()
        self._take = None
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

    def _note(self, item: Any) -> None:  # noqa: ANN401 - whatever samplers give out
        plain = type(item) in _PLAIN and self._index_of is None
        numbers: Sequence[int] = (item,) if plain else indices_of(item, self._index_of)
        start = self._position
        self._position = start + len(numbers)
        known = min(self._position, self._end) - start
        if known <= 0:
            self._given.extend(numbers)
            same = True
        else:
            at = start - self._first
            same = bool(self._told[at] == item) if plain else self._told[at : at + known].tolist() == [*numbers[:known]]
            self._given.extend(numbers[known:])
        if self._is_slow:
            self._is_slow = False
            return
        lease = self._lease or self._listening()
        if lease is None:
            self.end()
            return
        if not same:
            self._differs(lease, numbers)
        now = time.monotonic()
        if now >= self._due:
            self._progress(lease, now, len(numbers))
        elif not self._is_ahead:
            self._since += 1
            if self._since >= self._burst:
                self._burst *= 2
                self._tell_given(lease)

    def _progress(self, lease: Lease, now: float, size: int) -> None:
        """Now and then: draw on, tell what is worth it, and say how far the job is."""
        begins = self._due <= 0
        if not lease.is_heard():
            self.end()
            return
        later = False
        if self._is_ahead:
            later = self._draw(now + (_FIRST_S if begins else _STEP_S))
            if self._is_worth_telling():
                self._tell(lease)
            elif len(self._given) > MOST or (self._given and self._pieces is None and not self._drawn):
                self._differs(lease, self._given)  # there is more than was drawn, or it comes faster than it is drawn
        if not self._is_ahead:
            self._tell_given(lease)
            self._burst = 1 if size > 1 else _BURST
        elif not begins:
            self._tell_following(lease)
        lease.at(self._position)
        at_s = AT_S if self._is_ahead else max(AT_S, lease.samples / _SAMPLES_A_S)
        self._due = now if later else time.monotonic() + at_s

    # --- Ahead

    def _draw(self, until: float) -> bool:
        """Whether it goes on only when the job has its first index."""
        while self._pieces is not None and self._drawn_end < self._position + MOST:
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            elif not len(piece):
                return True
            else:
                self._drawn.append(piece)
                self._drawn_end += len(piece)
            if time.monotonic() >= until:
                break
        return False

    def _is_worth_telling(self) -> bool:
        """All that is left, or twice as much as what was told, or half of what may be told at a time."""
        left = self._drawn_end - self._position
        if self._pieces is None and left <= MOST:
            return bool(self._drawn)
        told, may = max(0, self._end - self._position), min(left, MOST)
        return may > told and (may >= 2 * told or (may == MOST and told <= MOST // 2))

    def _tell(self, lease: Lease) -> None:
        parts, first, end = [self._told], self._first, self._end
        while self._drawn and end < self._position + MOST:
            piece = self._drawn.popleft()
            room = self._position + MOST - end
            if len(piece) > room:
                self._drawn.appendleft(piece[room:])
            parts.append(piece[:room])
            end += len(parts[-1])
        told = np.concatenate(parts)
        given = as_array(self._given)
        if not np.array_equal(told[self._end - first :][: len(given)], given):
            self._differs(lease, self._given)
            return
        behind = max(first, self._position - _BEHIND)
        self._told, self._first, self._end = told[behind - first :], behind, end
        self._given.clear()
        lease.tell(behind, self._told, only_given=False)

    def _differs(self, lease: Lease, numbers: Sequence[int]) -> None:
        """The job was given something else than was told."""
        self._differed += 1
        lease.withdraw()
        numbers = list(numbers)
        self._pieces = None
        if self._differed <= _ANEW:
            self._pieces = self._anew()
        self._is_ahead = self._pieces is not None
        self._told, self._first, self._end = NO_INDICES, self._position, self._position
        self._drawn.clear()
        self._drawn_end = self._position
        self._given = [] if self._is_ahead else numbers
        self._due = 0.0

    # --- Behind

    def _tell_given(self, lease: Lease) -> None:
        del self._given[:-_BEHIND]
        self._since = 0
        if self._given:
            lease.tell(self._position - len(self._given), as_array(self._given), only_given=True)

    # --- The next epoch

    def _tell_following(self, lease: Lease) -> None:
        """Once, when all of this epoch was told; not before the training has its first samples."""
        if self._followed or self._pieces is not None or self._drawn or not len(self._told) or self._index_of:
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
