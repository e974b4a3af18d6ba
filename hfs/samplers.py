"""Samplers: the order in which a learner reads its share of a data set, made so that what it reads lies together.

Used inside training jobs, by PyTorch's DataLoader (`sampler=`) or by any loop over indices; they compose with
`hfs.hint.hinted`. Never reads data, never talks to the daemon or to other learners, imports no framework.
"""

import operator
import warnings
from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

# The independent random streams of an epoch: one for the order of the groups, which all learners draw alike, and one
# for each learner's order inside its groups (WITHIN_GROUPS + rank).
GROUP_ORDER = 0
WITHIN_GROUPS = 1


class GroupShuffleSampler:
    """Shuffles whole groups of neighbouring samples, then the samples inside each: nearly random, read in large pieces.

    Lee et al., "Asynchronous I/O Strategy for Large-Scale Deep Learning Applications", section III-A and figure 1.
    With N = n samples, B = group, P = world, M the global mini-batch:

    - The data set is cut into G = ceil(N/B) groups of B samples that are neighbours in the file; the last one has the
      rest. Group g holds the samples [g B, min((g + 1) B, N)).
    - Each epoch the groups are shuffled globally, and each learner takes its N/(B P) groups of that order, one after
      the other. A group lasts a learner for B P/M iterations, in which the next one can be read.
    - Inside a group the learner draws the samples in random order, until the group is used up.

    Every sample is drawn once an epoch, over all learners, and every learner draws ceil(N/P) samples. Where P does not
    divide N, N - P floor(N/P) learners have one sample more of their own than the others; the others make up for it
    with one sample of their right neighbour (the paper's oversampling: learners with less data than others repeat
    some, so slightly more samples are drawn than there are). Where B P does not divide N, the order is cut all the
    same after every N/P samples: at most P - 1 groups are shared by two learners whose ranks are neighbours, and so
    mostly by learners of one node. With fewer groups than learners, each reads its own part of a group.

    The order depends on (seed, epoch) alone, and for the inside of groups on the rank: no learner asks another. All
    must be given the same n, group, seed, world and epoch, and run the same NumPy.

    How to choose `group`: B samples should be some MiB (the paper: the wait for small samples ends between 1 and
    11 MiB) and whole chunks of the mount, so a multiple of chunk_bytes / sample_bytes. A learner holds two groups at a
    time. N/(B P) should stay well above 1: at 1, each learner trains on one shuffled part of the file. A mini-batch
    is drawn from about P groups: where neighbours in the file are alike (sorted by class), take smaller groups.

    The shuffle is known to be as good as a global one while S < N/G, where S is the number of epochs (equation 1; with
    N = 8192 and G = 64, fewer than 128 epochs). `set_epoch` warns once when epoch + 1 reaches N/G. The condition is
    sufficient, not necessary. With B = 1 the shuffle is the global one, and nothing is warned about.

    Attributes: n, group, seed, rank, epoch, and num_replicas (= world), as torch's DistributedSampler calls it.
    """

    def __init__(self, n: int, group: int, seed: int = 0, rank: int = 0, world: int = 1, epoch: int = 0) -> None:
        """n: samples in the data set, >= 1. group: samples in a group, >= 1. seed >= 0. 0 <= rank < world. epoch >= 0.

        Raises ValueError for a number out of its range, TypeError for what is no integer.
        """
        self.n = _at_least("n", n, 1)
        self.group = min(_at_least("group", group, 1), self.n)
        self.seed = _at_least("seed", seed, 0)
        self.num_replicas = _at_least("world", world, 1)
        self.rank = _at_least("rank", rank, 0)
        if self.rank >= self.num_replicas:
            raise ValueError(f"rank is {rank}: it must be in [0, {world}), since world is {world}")
        self._warned = False
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch` (>= 0, the first is 0).

        All learners must set the same. Warns once, when S = epoch + 1 epochs are no longer fewer than N/G.
        """
        self.epoch = _at_least("epoch", epoch, 0)
        groups = _ceil(self.n, self.group)
        if self.group > 1 and not self._warned and (self.epoch + 1) * groups >= self.n:
            self._warned = True
            warnings.warn(
                f"GroupShuffleSampler: epoch {self.epoch} is number {self.epoch + 1}; shuffling {groups} groups of"
                f" {self.n} samples is known to be as good as shuffling the samples for fewer than"
                f" {self.n / groups:g} epochs (S < N/G, Lee et al. equation 1). If the loss no longer falls as it"
                " should, use a larger group, or group=1 for the last epochs",
                stacklevel=2,
            )

    def extents(self) -> NDArray[np.int64]:
        """What this learner reads in this epoch, in order: shape (pieces, 2), rows of samples [start, end).

        A row is a group, or the part of it that is this learner's; none is empty. For loaders that read whole groups.
        """
        starts = self._random(GROUP_ORDER).permutation(_ceil(self.n, self.group)) * self.group
        ends = np.minimum(starts + self.group, self.n)
        # Places in the shuffled order, as if its groups lay one behind the other: group i has [after - size, after).
        after = np.cumsum(ends - starts)
        first = self.rank * self.n // self.num_replicas
        last = first + len(self)  # Exclusive; at most n, since floor(N - N/P) + ceil(N/P) = N
        pieces = np.stack(
            [np.maximum(starts, ends - (after - first)), ends - np.maximum(after - last, 0)], axis=1, dtype=np.int64
        )
        return pieces[pieces[:, 0] < pieces[:, 1]]

    def order(self) -> NDArray[np.int64]:
        """The samples that this learner draws in this epoch: shape (ceil(N/P),), values in [0, N)."""
        pieces = self.extents()
        starts, ends = pieces[:, :1], pieces[:, 1:]
        # Pieces differ in length: each is shuffled together with some numbers past its end, which then go.
        rows = self._random(WITHIN_GROUPS + self.rank).permuted(starts + np.arange((ends - starts).max()), axis=1)
        return rows[rows < ends]

    def __iter__(self) -> Iterator[int]:
        """The order of the epoch, as Python's integers."""
        return iter(self.order().tolist())

    def __len__(self) -> int:
        """Samples that each learner draws in an epoch: ceil(N/P)."""
        return _ceil(self.n, self.num_replicas)

    def __copy__(self) -> Self:
        """A copy that does not warn: it is made to look ahead (`hfs.hint` does), and the original will warn in time."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._warned = True
        return copy

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.epoch, stream)))


def _at_least(name: str, value: int, lowest: int) -> int:
    """`value` as Python's integer. Raises ValueError if it is less than `lowest`."""
    number = operator.index(value)
    if number < lowest:
        raise ValueError(f"{name} is {number}: it must be at least {lowest}")
    return number


def _ceil(number: int, divisor: int) -> int:
    """How many parts of `divisor` hold `number`."""
    return -(-number // divisor)
