"""How close decoded values are to those that were encoded: what a lossy codec has to show for itself."""

from __future__ import annotations

import dataclasses

import numpy as np

from hfs.codecs.codec import Array

OFF = 0.1
"""A value is off if it differs by more than this share of itself: the measure of the paper (section V.A)."""

NEAR_ZERO = 0.01
"""A value is near zero if it is smaller than this share of its channel's standard deviation. What is off there is off
by a thousandth of what the channel varies by, or little more."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """values, and how many of them are off; near zero, the same; the largest error in standard deviations.

    Values that are not finite are none of them, and must have come back as they were.
    """

    values: int = 0
    off: int = 0
    near_zero: int = 0
    near_zero_off: int = 0
    worst: float = 0.0

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(
            self.values + other.values,
            self.off + other.off,
            self.near_zero + other.near_zero,
            self.near_zero_off + other.near_zero_off,
            max(self.worst, other.worst),
        )


def accuracy(original: Array, decoded: Array, channels: str | None = None) -> Accuracy:
    """Of two arrays of one shape; `channels` says which axis, "first" or "last", has them, if any."""
    axis = {"first": 0, "last": -1}.get(channels or "")
    total = Accuracy()
    for before, after in (
        [(original, decoded)]
        if axis is None
        else zip(np.moveaxis(original, axis, 0), np.moveaxis(decoded, axis, 0), strict=True)
    ):
        finite = np.isfinite(before)
        true = before[finite].astype(np.float64)
        error = np.abs(after[finite].astype(np.float64) - true)
        size = np.abs(true)
        off = error > OFF * size
        spread = float(true.std()) if len(true) else 0.0
        near_zero = size < NEAR_ZERO * spread
        worst = float(error.max() / spread) if spread else 0.0
        total += Accuracy(len(true), int(off.sum()), int(near_zero.sum()), int((off & near_zero).sum()), worst)
    return total
