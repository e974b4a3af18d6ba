"""Small samples that look like those the codecs are for; and the same bytes on every run."""

from typing import Any

import numpy as np

SIDE = 12


def volume(seed: int = 0, side: int = SIDE, dtype: Any = np.int16) -> Any:
    """(side, side, side, 4): counts at four redshifts, coupled."""
    rng = np.random.default_rng(seed)
    density = np.exp(rng.standard_normal((side, side, side, 1)))
    return rng.poisson(density * [0.5, 0.7, 0.9, 1]).astype(dtype)


def fields(seed: int = 0, shape: tuple[int, int, int] = (4, 20, 96)) -> Any:
    """(channels, y, x) float32: waves of several heights, with a front, a calm and values around zero."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    y, x = np.arange(height)[:, None] / height, np.arange(width) / width
    found = np.empty(shape, np.float32)
    for channel in range(channels):
        a, b, c = rng.uniform(1, 4, 3)
        found[channel] = 10.0**channel * np.sin(a * x + b * y + c)
        found[channel] += 10.0**channel * np.tanh((x - 0.5 - 0.2 * y) * 60)
    found[0, : height // 4, width // 2 :] = 0
    return found
