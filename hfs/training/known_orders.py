"""The orders of samplers whose code is known, told without drawing from them: exactly these classes, since a subclass
may do anything. Also what the items of any sampler say: which indices are in them, of which epoch and learner they are.

An index is an int, a NumPy integer or a tensor without dimensions; a batch is a list, a range, or an array or tensor of
one dimension, of these; whatever framework they are of. A tuple may be anything, such as (size, index): of what is no
index and no batch the job must say which numbers in it are indices.

What a sampler will draw from a generator is drawn from a copy of that generator, or of the global one. Should a version
of PyTorch draw in another way, then what is given out differs from what is said here, and who compares sees it.

A known order is begun in two steps, as the sampler's own iterator is: what `iter` reads of the sampler is read by
`known`, what the first `next` reads by what `known` returns. Its pieces are then made one by one when they are asked
for; an empty one says: not before the job has its first index.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hfs.mountd.core.errors import HfsError

Indices: TypeAlias = npt.NDArray[np.int64]
IndexOf: TypeAlias = Callable[[Any], Any]
"""What a job says: the index of an item, or all indices of it."""
Pieces: TypeAlias = Iterator[Indices]
Begin: TypeAlias = Callable[[], Pieces]
Sampler: TypeAlias = Any

NO_INDICES: Indices = np.empty(0, np.int64)

LARGE = 1 << 20
"""Samples whose permutation takes long enough for a job to notice it before its first index: some 20 ms."""
_PIECE = 1 << 16

_TORCH = "torch.utils.data.sampler"
_OURS = "hfs.samplers"


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


def known(sampler: Sampler, index_of: IndexOf | None = None) -> Begin | None:
    """What begins the order of the epoch that is about to be begun; None: the sampler's code is not known."""
    kind = _kind(sampler)
    if kind in _CONTAINERS or type(sampler) is np.ndarray:
        return lambda: _items(sampler, index_of)
    if kind == (_TORCH, "BatchSampler"):
        return None if index_of else _batches(sampler)
    if index_of and kind == (_OURS, "LocalityAwareSampler"):
        return None  # its items are batches too
    if kind in _EAGER:
        now = _EAGER[kind](copy.copy(sampler))
        return lambda: _mapped(now, index_of)
    if kind in _LAZY:
        return lambda: _mapped(_LAZY[kind](sampler), index_of)
    return None


def following(sampler: Sampler, epoch: int) -> Pieces | None:
    """What the sampler will give out in `epoch`, which has not begun; None where that cannot be known."""
    kind = _kind(sampler)
    if kind == (_TORCH, "BatchSampler"):
        inner = following(sampler.sampler, epoch)
        return None if inner is None else _cut(inner, sampler.batch_size, sampler.drop_last)
    if (rule := _EAGER.get(kind)) is not None:
        other = copy.copy(sampler)
        other.set_epoch(epoch)
        return rule(other)
    return _LAZY[kind](sampler) if repeats(sampler) else None


def repeats(sampler: Sampler) -> bool:
    """Whether the sampler is known to give out the same in each epoch."""
    kind = _kind(sampler)
    if kind == (_TORCH, "BatchSampler"):
        return repeats(sampler.sampler)
    return kind in {(_TORCH, "SequentialSampler"), ("builtins", "range")}


def _kind(sampler: Sampler) -> tuple[str, str]:
    kind = type(sampler)
    return kind.__module__, kind.__qualname__


def _mapped(pieces: Pieces, index_of: IndexOf | None) -> Pieces:
    if index_of is None:
        return pieces
    return (flatten(piece.tolist(), index_of) for piece in pieces)


def _items(container: Any, index_of: IndexOf | None) -> Pieces:  # noqa: ANN401 - lists, arrays, tensors
    flat = index_of is None and getattr(container, "ndim", 0) == 1
    for start in range(0, len(container), _PIECE):
        part = container[start : start + _PIECE]
        yield flatten([part] if flat else list(part), index_of)


def _batches(sampler: Sampler) -> Begin | None:
    """The batch sampler asks for the inner iterator only when its first batch is asked for."""
    if known(sampler.sampler) is None:
        return None

    def begin() -> Pieces:
        inner = known(sampler.sampler)
        assert inner is not None
        return _cut(inner(), sampler.batch_size, sampler.drop_last)

    return begin


def _cut(pieces: Pieces, batch: int, drop_last: bool) -> Pieces:
    """Without an uneven last batch, if it is dropped."""
    kept = NO_INDICES
    for piece in pieces:
        whole = np.concatenate((kept, piece)) if len(kept) else piece
        kept = whole[len(whole) - len(whole) % batch :] if drop_last else NO_INDICES
        yield whole[: len(whole) - len(kept)]


# --- By class


def _range(numbers: range) -> Pieces:
    for start in range(0, len(numbers), LARGE):
        part = numbers[start : start + LARGE]
        yield np.arange(part.start, part.stop, part.step, dtype=np.int64)


def _sequential(sampler: Sampler) -> Pieces:
    return _range(range(len(sampler.data_source)))


def _random(sampler: Sampler) -> Pieces:
    generator = _forked(sampler.generator)
    if sampler.generator is None:
        torch = sys.modules["torch"]
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        generator = torch.Generator().manual_seed(seed)
    n, count = len(sampler.data_source), sampler.num_samples
    return _replaced(n, count, generator) if sampler.replacement else _permuted(n, count, generator)


def _replaced(n: int, count: int, generator: Any) -> Pieces:  # noqa: ANN401 - torch's
    # The sampler draws by 32, and what that gives is not otherwise when more are drawn at once.
    torch = sys.modules["torch"]
    sizes = itertools.repeat(_PIECE, count // _PIECE)
    for size in itertools.chain(sizes, (count % _PIECE // 32 * 32, count % 32)):
        if size:
            yield torch.randint(high=n, size=(size,), dtype=torch.int64, generator=generator).numpy()


def _permuted(n: int, count: int, generator: Any) -> Pieces:  # noqa: ANN401 - torch's
    torch = sys.modules["torch"]
    for start in range(0, count, n):
        yield from _later(n)
        yield torch.randperm(n, generator=generator).numpy()[: count - start]


def _subset(sampler: Sampler) -> Pieces:
    generator, indices = _forked(sampler.generator), sampler.indices

    def pieces() -> Pieces:
        yield from _later(len(indices))
        order = sys.modules["torch"].randperm(len(indices), generator=generator).numpy()
        for start in range(0, len(order), _PIECE):
            yield flatten([indices[place] for place in order[start : start + _PIECE].tolist()])

    return pieces()


def _weighted(sampler: Sampler) -> Pieces:
    generator, weights, count = _forked(sampler.generator), sampler.weights, sampler.num_samples

    def pieces() -> Pieces:
        yield from _later(len(weights) + count)
        yield sys.modules["torch"].multinomial(weights, count, sampler.replacement, generator=generator).numpy()

    return pieces()


def _distributed(sampler: Sampler) -> Pieces:
    torch, n, total = sys.modules["torch"], len(sampler.dataset), sampler.total_size
    yield from _later(n)
    order = np.arange(n)
    if sampler.shuffle:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch)).numpy()
    if not sampler.drop_last and total > n:
        order = np.concatenate((order, np.resize(order, total - n)))
    yield order[sampler.rank : total : sampler.num_replicas]


def _ours(sampler: Sampler) -> Pieces:
    yield from _later(sampler.n)
    yield sampler.order()


def _later(samples: int) -> Pieces:
    if samples > LARGE:
        yield NO_INDICES


def _forked(generator: Any) -> Any:  # noqa: ANN401 - torch's generators
    """A generator that will draw what this one will; None: what the global one will."""
    torch = sys.modules["torch"]
    if generator is None:
        return torch.Generator().set_state(torch.get_rng_state())
    return torch.Generator(device=generator.device).set_state(generator.get_state())


_CONTAINERS = {("builtins", "list"), ("builtins", "tuple"), ("torch", "Tensor")}
_EAGER: dict[tuple[str, str], Callable[[Sampler], Pieces]] = {
    ("torch.utils.data.distributed", "DistributedSampler"): _distributed,
    (_OURS, "GroupShuffleSampler"): _ours,
    (_OURS, "LocalityAwareSampler"): _ours,
}
"""Their order depends on `epoch` and nothing that changes, and is drawn by `iter`."""
_LAZY: dict[tuple[str, str], Callable[[Sampler], Pieces]] = {
    ("builtins", "range"): _range,
    (_TORCH, "SequentialSampler"): _sequential,
    (_TORCH, "RandomSampler"): _random,
    (_TORCH, "SubsetRandomSampler"): _subset,
    (_TORCH, "WeightedRandomSampler"): _weighted,
}
"""Their order is drawn when the first item is asked for."""
