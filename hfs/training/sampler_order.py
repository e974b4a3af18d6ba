"""What the items of a sampler say: which indices are in them, of which epoch and which learner they are.

Works with any iterable of indices or of batches of them, by what the items are, not by their framework. An index is an
int, a NumPy integer or a tensor without dimensions; a batch is a list, a range, or an array or tensor of one dimension,
of these. A tuple may be anything, such as (size, index): of what is no index and no batch the job must say which
numbers in it are indices. Knows nothing of daemons, and changes nothing that the sampler's next user could see.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hfs.mountd.core.errors import HfsError

Indices: TypeAlias = npt.NDArray[np.int64]
IndexOf: TypeAlias = Callable[[Any], Any]
"""What a job says: the index of an item, or all indices of it."""

NO_INDICES: Indices = np.empty(0, np.int64)


class NotIndices(HfsError):
    """What a sampler gives out are not indices of samples."""


def indices_of(item: Any, index_of: IndexOf | None = None) -> Sequence[int]:  # noqa: ANN401 - whatever samplers give out
    """The indices in one item, in order, as Python's integers. Raises NotIndices; and whatever `index_of` raises."""
    if index_of is not None:
        item = index_of(item)
        if isinstance(item, tuple):
            item = list(item)
    kind = type(item)
    if kind is int:
        return (item,)
    if hasattr(item, "tolist"):  # NumPy and torch, scalars and arrays
        item = item.tolist()
    if isinstance(item, list | range):
        if set(map(type, item)) <= {int}:
            return item
        return [_index(each, "in a batch") for each in item]
    return (_index(item, "", kind),)


def flatten(items: Iterable[Any], index_of: IndexOf | None = None) -> Indices:
    """All indices of some items in their order. Raises NotIndices; and whatever `index_of` raises."""
    if index_of is None and isinstance(items, list) and set(map(type, items)) <= {int}:
        return as_array(items)
    found: list[int] = []
    for item in items:
        found.extend(indices_of(item, index_of))
    return as_array(found)


def as_array(indices: Sequence[int]) -> Indices:
    """Raises NotIndices."""
    try:
        return np.array(indices, dtype=np.int64)
    except OverflowError as error:
        raise NotIndices(str(error)) from None


def _index(item: Any, where: str, kind: type | None = None) -> int:  # noqa: ANN401 - whatever samplers give out
    with contextlib.suppress(TypeError):
        if not isinstance(item, bool) and not getattr(item, "ndim", 0):
            return int(operator.index(item))
    what = f"{(kind or type(item)).__name__} {where}".strip()
    raise NotIndices(f"the sampler gives out {what}, which is no index: tell hinted with index_of= what the index is")


def _below(sampler: object) -> Iterator[object]:
    """The sampler and those that it batches."""
    for _ in range(4):
        if sampler is None:
            return
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def epoch_of(sampler: object) -> int | None:
    """The `epoch` of the sampler, or of the one that it batches; None if they have none, or raise something."""
    with contextlib.suppress(Exception):
        for each in _below(sampler):
            epoch = getattr(each, "epoch", None)
            if isinstance(epoch, int) and epoch >= 0:
                return int(epoch)
    return None


def rank_of(sampler: object) -> tuple[int, int] | None:
    """(rank, number of learners) that the sampler, or the one that it batches, draws for; None as for `epoch_of`."""
    with contextlib.suppress(Exception):
        for each in _below(sampler):
            rank = getattr(each, "rank", None)
            for name in ("num_replicas", "world"):
                world = getattr(each, name, None)
                if isinstance(rank, int) and isinstance(world, int) and 0 <= rank < world:
                    return int(rank), int(world)
    return None
