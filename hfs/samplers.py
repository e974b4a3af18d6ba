"""Samplers: the order in which a learner reads its share of a data set, made so that what it reads lies together.

Used inside training jobs, by PyTorch's DataLoader (`sampler=`, `batch_sampler=`) or by any loop over indices; they
compose with `hfs.hint.hinted`. Never reads data, imports no framework, talks to other learners only by what it is given
for that; asks the daemon for the nodes where that is wanted.
"""

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from hfs.policies.cluster.locality import slice_epoch
from hfs.training.launcher import rank_and_world
from hfs.training.locality import Division, Locality, log

__all__ = ["GroupShuffleSampler", "Locality", "LocalityAwareSampler"]

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
    sufficient, not necessary: larger groups raise the bound, though smaller ones mix the samples better. With B = 1 the
    shuffle is the global one, and nothing is warned about.

    Attributes: n, group, seed, rank, epoch, and num_replicas (= world), as torch's DistributedSampler calls it.
    """

    def __init__(self, n: int, group: int, seed: int = 0, rank: int = 0, world: int = 1, epoch: int = 0) -> None:
        """n: samples in the data set, >= 1. group: samples in a group, >= 1. seed >= 0. 0 <= rank < world. epoch >= 0.

        Raises ValueError for a number out of its range, TypeError for what is no integer.
        """
        self.n = _at_least("n", n, 1)
        self.group = min(_at_least("group", group, 1), self.n)
        self.seed = _at_least("seed", seed, 0)
        self.rank, self.num_replicas = _learner(rank, world)
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
                " should, use group=1, which shuffles the samples, for the last epochs",
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


class LocalityAwareSampler:
    """Batches that are already where they are trained on: a batch sampler for the learners of many nodes.

    Yang and Cong, "Accelerating Data Loading in Deep Neural Network Training", section V. All learners draw the same
    permutation of the samples for an epoch and cut it into the same global batches. Of each batch a node takes the
    samples that its daemon has cached, and what some nodes have too many of goes to those that have too few (Algorithm
    1): some 7 % of a batch at 32 samples a learner's node, 5 % at 64. Since the order inside a global batch does not
    change the summed gradient (Theorem 1), training is as with the regular sampler, which gives rank r the r-th slice
    of each batch; only sums that are rounded in another order differ, and what is computed of local batches alone,
    such as batch normalisation.

        sampler = LocalityAwareSampler(len(files), 256, seed, rank, world, Locality("/data", files=files))
        loader = DataLoader(dataset, batch_sampler=hinted(sampler, files=files, mount="/data"))

    It iterates over lists of indices, one a step, all of batch / world indices, on all learners alike. An uneven last
    batch is filled up with samples from the beginning of the epoch until `world` divides it, or left out.

    The nodes are asked for when the sampler is made, and by `renew`. Where each node has all data (`replicate`), where
    there is only one node, and without a daemon (after one warning), it is the regular sampler. Learners must agree:
    all need the same arguments and the same answer. `renew` makes sure of it, and `digest` is the same on all that do.

    Attributes: n, batch, seed, rank, epoch, drop_last, num_replicas (= world), batch_size (of one learner), digest.
    """

    def __init__(
        self,
        n: int,
        batch: int,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        locality: Locality | None = None,
        *,
        drop_last: bool = False,
    ) -> None:
        """n: samples in the data set, >= 1. batch: samples of a global batch, a multiple of `world`.

        rank, world: which learner of how many; by default as the launcher says. locality: where samples are cached and
        learners run; None: the regular sampler. drop_last: leave out an uneven last batch.

        Raises ValueError (TypeError) for arguments that are out of range or contradict each other, and where it cannot
        be known which learner is on which node; ConfigError and LayoutError for files and layouts that do not fit the
        mount.
        """
        if (rank is None) != (world is None):
            raise ValueError(f"rank={rank}, world={world}: give both or none")
        if rank is None or world is None:
            rank, world = rank_and_world()
        self.n = _at_least("n", n, 1)
        self.batch = _at_least("batch", batch, 1)
        self.seed = _at_least("seed", seed, 0)
        self.rank, self.num_replicas = _learner(rank, world)
        self.drop_last = drop_last
        if self.batch % self.num_replicas:
            raise ValueError(
                f"batch is {batch}, of all {world} learners together: it must be a multiple of {world}, so that all"
                f" train on as many samples; give {_ceil(self.batch, self.num_replicas) * self.num_replicas}"
            )
        self._locality = locality
        self._division = self._asked(None)
        self.set_epoch(0)

    def _asked(self, now: Division | None) -> Division | None:
        return None if self._locality is None else self._locality.division(self.n, self.rank, self.num_replicas, now)

    def renew(self, gather: Callable[[str], Sequence[str]]) -> None:
        """Ask for the nodes again, since some may have come or left. For all learners together, before an epoch begins.

        gather: of this learner's text those of all, as all_gather_object of torch.distributed and allgather of MPI
        have it. Where all have come to the same owners, these hold from now on. Else all go on with those that they
        had, and if these differ too, with slices as of the regular sampler: no sample is left out or drawn twice.

        Raises, on all learners, ValueError where their arguments differ; and what `gather` raises.
        """
        now = found = self._division
        try:
            found = self._asked(now)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for this learner
            log.warning("%s; all learners go on with the nodes that they knew", error)
        plans = found, now, None  # the last is known to all
        said = [text.split() for text in gather(" ".join(map(self._digest, plans)))]
        same = [len(set(digests)) == 1 for digests in zip(*said, strict=True)]
        if len(said) != self.num_replicas or True not in same:
            raise ValueError("n, batch, seed and drop_last must be the same for all, and gather give the texts of all")
        self._division = plans[same.index(True)]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch` (>= 0, the first is 0). All learners must set the same."""
        self.epoch = _at_least("epoch", epoch, 0)

    @property
    def batch_size(self) -> int:
        """Samples of a step of one learner; the last step may have fewer."""
        return self.batch // self.num_replicas

    @property
    def local(self) -> bool:
        """Whether batches are divided by who has what; if not, this is the regular sampler."""
        return self._division is not None

    @property
    def digest(self) -> str:
        """The same text on all learners that will divide the same batches in the same way."""
        return self._digest(self._division)

    def _digest(self, division: Division | None) -> str:
        learners, owners = ([], b"") if division is None else (division.learners, division.owners.tobytes())
        plain = (self.n, self.batch, self.seed, self.num_replicas, self.drop_last, learners)
        return xxhash.xxh3_128_hexdigest(repr(plain).encode() + owners)

    def global_order(self) -> NDArray[np.int64]:
        """The samples of all learners in this epoch: int64, step s is [s batch, (s + 1) batch)."""
        stream = np.random.SeedSequence(self.seed, spawn_key=(self.epoch, GROUP_ORDER))
        order = np.random.default_rng(stream).permutation(self.n)
        if self.drop_last:
            return order[: self.n // self.batch * self.batch]
        missing = -self.n % self.batch % self.num_replicas
        return np.concatenate([order, np.resize(order, missing)]) if missing else order

    def order(self) -> NDArray[np.int64]:
        """The samples of this learner in this epoch, step by step: int64, values in [0, n)."""
        return self._planned()[0]

    def moved(self) -> NDArray[np.float64]:
        """For each step of this epoch the share of the global batch that is not trained on where it is cached, 0..1.

        NaN where that is not known, being the regular sampler.
        """
        return self._planned()[1]

    def _planned(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        order = self.global_order()
        if self._division is not None:
            return self._division.divide(order, self.batch)
        mine = slice_epoch(len(order), self.batch, self.num_replicas, self.rank)
        return order[mine], np.full(len(self), np.nan)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this learner, as lists of Python's integers."""
        order, size = self.order(), self.batch_size  # now, whatever epoch is set before the first batch is asked for
        return (order[start : start + size].tolist() for start in range(0, len(order), size))

    def __len__(self) -> int:
        """Steps of an epoch, the same for all learners."""
        return self.n // self.batch if self.drop_last else _ceil(self.n, self.batch)


def _learner(rank: int, world: int) -> tuple[int, int]:
    """Both as Python's integers. Raises ValueError unless 0 <= rank < world."""
    world, rank = _at_least("world", world, 1), _at_least("rank", rank, 0)
    if rank >= world:
        raise ValueError(f"rank is {rank}: it must be in [0, {world}), since world is {world}")
    return rank, world


def _at_least(name: str, value: int, lowest: int) -> int:
    """`value` as Python's integer. Raises ValueError if it is less than `lowest`."""
    number = operator.index(value)
    if number < lowest:
        raise ValueError(f"{name} is {number}: it must be at least {lowest}")
    return number


def _ceil(number: int, divisor: int) -> int:
    """How many parts of `divisor` hold `number`."""
    return -(-number // divisor)
