"""First reads: what is fetched ahead gives way to the first bypass reads of a job.

A reader that begins takes samples here and there, one after the other, and its first batch is there when all of them
are. Each waits for what was asked of the source before: behind eight chunks of 8 MiB 0.13 s at 500 MB/s, alone 1 ms. So
the first batch of two learners over files of 2 GB came after 2.4 to 3.3 s, directly after 0.23; now after 0.4 to 0.7.
What is fetched ahead begins as much later as these few hundred reads take. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

_MOST = 320
"""Two batches of 128, and the way to their samples: 0.2 s of a source that gives each reader 1 000 a second."""

_AGAIN_S = 5.0
"""Without a bypass read for so long, those that come then are first ones."""

_BETWEEN_S = 0.003
"""A reader that reads on asks again within that, on a busy machine too."""

_LONGEST_S = 0.1
"""A read that takes longer hangs, perhaps in a part of the source alone, and holds back nothing."""


class FirstReads:
    """Of all readers of the mount together."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called when one has its bytes."""
        self._ended = ended
        self._count = 0
        self._under_way = 0
        self._last_s = self._until_s = -math.inf

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """A bypass read is under way."""
        now_s = trio.current_time()
        self._count = 1 if now_s > self._last_s + _AGAIN_S else self._count + 1
        self._last_s = now_s
        if self._count > _MOST:
            yield
            return
        self._under_way += 1
        self._until_s = now_s + _LONGEST_S
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._until_s = trio.current_time() + _BETWEEN_S
            self._ended()

    def left_s(self) -> float:
        """How long nothing is to be fetched ahead if no further one comes; 0: it may."""
        return max(0.0, self._until_s - trio.current_time())
