"""How fast a learner goes through its epoch: samples a second, from what its sampler says now and then.

A sampler is drawn in bursts: a loader draws some batches for each of its workers at once when the epoch begins, then
one whenever a batch is done, and reports of it come late and together. So progress is measured over a second at least,
the first second of an epoch does not count, and an average over ten seconds is what is told. Times are seconds of one
clock that never goes back.
"""

from __future__ import annotations

from math import exp

_MEASURE_S = 1.0
_MEMORY_S = 10.0
"""Some batches of a slow job, and short enough that a learner that speeds up after its first epoch is soon known."""
_PAUSE_S = 60.0
"""Who says nothing for so long does something else (validation, a checkpoint): that is no pace."""


class Pace:
    """The pace of one learner. `rate`: samples a second, more than 0; None as long as nothing is known."""

    __slots__ = ("_from", "_since_s", "_warm", "rate")

    def __init__(self) -> None:
        self.rate: float | None = None
        self._from = 0
        self._since_s = 0.0
        self._warm = False

    def begin(self, now_s: float) -> None:
        """An epoch begins, at position 0. The rate of the one before holds until this one's is known."""
        self._from, self._since_s, self._warm = 0, now_s, False

    def moved(self, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples of the epoch; never fewer than before."""
        spent_s = now_s - self._since_s
        if spent_s < _MEASURE_S:
            return
        measured = (position - self._from) / spent_s
        if self._warm and spent_s < _PAUSE_S and measured > 0:
            if self.rate is None:
                self.rate = measured
            else:
                self.rate += (1.0 - exp(-spent_s / _MEMORY_S)) * (measured - self.rate)
        self._from, self._since_s, self._warm = position, now_s, True
