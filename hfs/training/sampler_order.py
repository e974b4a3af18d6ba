"""The order that a sampler will give its indices out in, drawn ahead, as an array.

Works with any iterable of indices or of batches of them, by what the items are, not by their framework: ints, NumPy
integers, zero-dimensional tensors, lists, tuples and arrays of these to any depth. Knows nothing of daemons, and
changes nothing that the sampler's next user could see.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hfs.mountd.base.errors import HfsError

Indices = npt.NDArray[np.int64]

DRAW_AHEAD = 4 * 1024**2
"""Items drawn of a sampler that does not know its length: it may be endless."""

_BATCH_SAMPLER = ("torch.utils.data.sampler", "BatchSampler")
_SEEDED_BY_EPOCH = {("torch.utils.data.distributed", "DistributedSampler")}
"""Samplers whose order depends on `epoch` and nothing that changes: exactly these classes, since a subclass may draw
from a generator, and then a look ahead would change what the training gets."""
_SEEDED_MODULE = "hfs.samplers"
_ALWAYS_THE_SAME = {("torch.utils.data.sampler", "SequentialSampler"), ("builtins", "range")}


class NotIndices(HfsError):
    """What a sampler gives out are not indices of samples."""


def draw(iterator: Iterator[Any], limit: int) -> tuple[list[Any], Exception | None]:
    """At most `limit` items, and the error that came instead of the next one: it is due after them."""
    items: list[Any] = []
    try:
        items.extend(itertools.islice(iterator, limit))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the bare sampler would raise it
        return items, error
    return items, None


def flatten(items: Iterable[Any]) -> tuple[Indices, Indices | None]:
    """All indices in their order, int64; and for each item how many there are up to its end (None: one an item).

    Raises NotIndices.
    """
    items = items if isinstance(items, list) else list(items)
    kinds = set(map(type, items))
    if kinds <= {int}:
        try:
            return np.array(items, dtype=np.int64), None
        except OverflowError as error:
            raise NotIndices(str(error)) from None
    if all(issubclass(kind, np.integer) for kind in kinds) and np.uint64 not in kinds:
        return np.array(items).astype(np.int64), None
    if kinds <= {list, tuple}:
        ends = np.cumsum(np.fromiter(map(len, items), np.int64, len(items)))
        flat, inner = flatten(list(itertools.chain.from_iterable(items)))
        if inner is not None:
            ends = np.concatenate((np.zeros(1, np.int64), inner))[ends]
        return flat, ends
    plain = [_plain(item) for item in items]
    if any(isinstance(item, list | tuple) for item in plain):
        return flatten([item if isinstance(item, list | tuple) else (item,) for item in plain])
    return flatten(plain)


def _plain(item: Any) -> Any:  # noqa: ANN401 - an int, or a list or tuple of whatever
    if isinstance(item, list | tuple):
        return list(item)
    if hasattr(item, "tolist"):  # NumPy and torch, scalars and arrays
        item = item.tolist()
    if isinstance(item, list) or type(item) is int:
        return item
    try:
        return int(operator.index(item))
    except TypeError:
        raise NotIndices(f"the sampler gives out {type(item).__name__}, not indices") from None


def _below(sampler: object) -> Iterator[object]:
    """The sampler and those that it batches."""
    for _ in range(4):
        if sampler is None:
            return
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def epoch_of(sampler: object) -> int | None:
    """The `epoch` of the sampler, or of the one that it batches; None if they have none."""
    for each in _below(sampler):
        epoch = getattr(each, "epoch", None)
        if isinstance(epoch, int) and epoch >= 0:
            return int(epoch)
    return None


def rank_of(sampler: object) -> tuple[int, int] | None:
    """(rank, number of learners) that the sampler, or the one that it batches, draws for."""
    for each in _below(sampler):
        rank = getattr(each, "rank", None)
        for name in ("num_replicas", "world"):
            world = getattr(each, name, None)
            if isinstance(rank, int) and isinstance(world, int) and 0 <= rank < world:
                return int(rank), int(world)
    return None


def following(sampler: object, epoch: int) -> Iterator[Any] | None:
    """What the sampler will give out in `epoch`, one that has not begun; None where a look would not be harmless."""
    ahead = _ahead(sampler, epoch)
    return None if ahead is None else iter(ahead)


def repeats(sampler: object) -> bool:
    """Whether the sampler is known to give out the same in each epoch."""
    kind = type(sampler)
    if (kind.__module__, kind.__qualname__) == _BATCH_SAMPLER:
        return repeats(getattr(sampler, "sampler", None))
    return (kind.__module__, kind.__qualname__) in _ALWAYS_THE_SAME


def _ahead(sampler: Any, epoch: int) -> Iterable[Any] | None:  # noqa: ANN401 - any sampler
    kind = (type(sampler).__module__, type(sampler).__qualname__)
    if kind in _ALWAYS_THE_SAME:
        return sampler  # type: ignore[no-any-return]  # a sampler of a class that was just looked at
    if kind in _SEEDED_BY_EPOCH or (kind[0] == _SEEDED_MODULE and hasattr(sampler, "set_epoch")):
        ahead = copy.copy(sampler)
        ahead.set_epoch(epoch)
        return ahead  # type: ignore[no-any-return]  # a sampler of a class that was just looked at
    if kind == _BATCH_SAMPLER and (inner := _ahead(sampler.sampler, epoch)) is not None:
        ahead = copy.copy(sampler)
        ahead.sampler = inner
        return ahead  # type: ignore[no-any-return]  # a sampler of a class that was just looked at
    return None
