"""A source that does not answer: how long a question may take whose answer is known from before, and when to ask again.

Past the time-to-live one question is asked. If it gets no answer in time, what was known is served, and for some
seconds without asking: an open asks once for each component of its path, and would wait for each of them. One object a
mount, shared by all who know something already: names, attributes and listings (`namespace`), permissions (`access`).
Pure but for a counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hfs.mountd.core.metrics import Metrics

_LIMIT_S = 2.0
"""How long a question may keep a reader whose answer is known. design.md section 5."""

_SILENT_S = 5.0
"""How long nothing is asked after a question that got no answer, or until anything is answered: an open asks once for
each component of its path, twice for the file, and waited 14 s in all."""


_SERVED_S = 1.0
"""How long what was known is good for where the source did not answer."""


class Silence:
    """`strict`: the source is waited for instead, and nothing is served that may be old."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float], *, strict: bool) -> None:
        self._metrics = metrics
        self._clock = clock
        self._strict = strict
        self._until_s = -math.inf

    def is_on(self) -> bool:
        """The source has not answered a moment ago, and what is known may be served without asking."""
        return not self._strict and self._clock() < self._until_s

    def limit_s(self, *, known: bool) -> float | None:
        """How long a question may take, in seconds; None: as long as the source may take for anything."""
        return _LIMIT_S if known and not self._strict else None

    def begin(self, *, known: bool) -> bool:
        """A question got no answer in time. Whether what is known is to be served instead."""
        if not known or self._strict:
            return False
        self._until_s = self._clock() + _SILENT_S
        return True

    def end(self) -> None:
        """The source has answered something."""
        self._until_s = -math.inf

    def good_until_s(self) -> float:
        """Until when what was known is good, where the source did not answer."""
        return self._clock() + _SERVED_S

    def served(self) -> None:
        """What was known was served past its time."""
        self._metrics.add("stale_served")
