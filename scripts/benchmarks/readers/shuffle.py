"""The order of an epoch: drawn by the job that reads in it, and again by the benchmark that judges what was read."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Each number below `count` once, int64; the same for the same arguments."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class Shuffled:
    """Every index once an epoch, in an order that seed and epoch give; the form of PyTorch's DistributedSampler."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(order(self.count, self.seed, self.epoch).tolist())
