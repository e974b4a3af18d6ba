"""The order of an epoch: drawn by the job that reads in it, and again by the benchmark that judges what was read."""

import numpy as np
import numpy.typing as npt


def order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Each number below `count` once, int64; the same for the same arguments."""
    return np.random.default_rng([seed, epoch]).permutation(count)
