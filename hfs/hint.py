"""`hinted(sampler, ...)`: tells the daemon what a training will read, and changes nothing else.

    from hfs.hint import hinted
    sampler = hinted(DistributedSampler(dataset, ...), files=[path for path, _ in dataset.samples], mount="/data")

Each epoch's order is drawn once, sent, and given out unchanged. Where there is no daemon, or it dies, refuses or is
slow, the training goes on as with the bare sampler; one warning is logged. Logged and not `warnings.warn`, since a
program that turns warnings into errors must not end for a hint; without any logging set up Python prints it to stderr.

Runs inside training jobs: imports no framework. A sampler is drawn ahead only while a daemon listens.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from hfs.layouts.files import Path, check_samples
from hfs.layouts.layout import Layout
from hfs.training import sampler_order as orders
from hfs.training.hint_session import Hints

__all__ = ["Hinted", "Hints", "hinted", "hints_of"]

AT_S = 0.05
"""Between two messages of progress: twenty a second tell the daemon the rate, and cost the job nothing."""


def hinted(
    sampler: Any,  # noqa: ANN401 - any iterable of indices
    files: Sequence[Path] | None = None,
    layout: str | os.PathLike[str] | Layout | None = None,
    mount: str | None = None,
    *,
    name: str = "",
    rank: int | None = None,
    world: int | None = None,
    control: str | None = None,
) -> Any:  # noqa: ANN401 - it has all that the sampler has
    """The same sampler, whose order the daemon of a mount of hfs is told.

    `sampler` is any iterable of indices or of lists of indices (a batch sampler), or an array of indices; index i means
    the whole of `files[i]` or sample i of `layout` (a Layout, or the path of its file). Give one of the two. Paths are
    absolute and below the mount, or relative to it. The result has all attributes and methods of the sampler.

    `mount`: the mountpoint; found from the first file, or if there is only one. `name`: for people, in `hfs status`.
    `rank`, `world`: which learner of how many, 0 <= rank < world; by default the sampler's own, or the launcher's.
    `control`: the daemon's control socket, where the mount does not lead to it.

    Raises ValueError for arguments that contradict each other, and nothing else, now or later.
    """
    check_samples(files, layout)
    if (rank is None) != (world is None) or (rank is not None and world is not None and not 0 <= rank < world):
        raise ValueError(f"rank={rank}, world={world}: give both or none, 0 <= rank < world")
    learner = None if rank is None or world is None else (rank, world)
    if isinstance(layout, os.PathLike):
        layout = os.fspath(layout)
    if mount is not None:
        mount = os.path.abspath(mount)  # a job may go to another directory later
    hints = Hints(files=files, layout=layout, mount=mount, control=control, name=name, learner=learner)
    return (Hinted if hasattr(sampler, "__len__") else _Unsized)(sampler, hints)


def hints_of(sampler: object) -> Hints | None:
    """What `hinted` has made of this sampler, or of the one that it batches; None: nothing."""
    for _ in range(4):
        if issubclass(type(sampler), _Unsized):
            found: Hints = object.__getattribute__(sampler, "_hfs_hints")
            return found
        sampler = getattr(sampler, "sampler", None)
    return None


def _given_out(
    iterator: Iterator[Any], limit: int, epoch: int | None, sampler: object, hints: Hints
) -> Generator[Any, None, None]:
    """The items of `iterator`; the first `limit` of them are drawn, and told, when the first is asked for."""
    lease = hints.take(sampler, epoch)
    if lease is None:
        yield from iterator
        return
    try:
        items, fault = orders.draw(iterator, limit)
        ends = lease.begin(items)
        clock, due = time.monotonic, 0.0
        for item, position in zip(items, range(1, len(items) + 1) if ends is None else ends.tolist(), strict=True):
            now = clock()
            if now >= due:
                if due:
                    lease.follow(sampler)
                due = now + AT_S
                lease.at(position)
            yield item
        lease.follow(sampler)
        if fault is not None:
            raise fault
        del items
        yield from iterator
    finally:
        lease.over()


class _Unsized:
    """A sampler and its hints. All but `__iter__` is the sampler's."""

    __slots__ = ("__weakref__", "_hfs_hints", "_hfs_sampler")

    def __init__(self, sampler: Any, hints: Hints) -> None:  # noqa: ANN401 - any sampler, and whatever its attributes are
        object.__setattr__(self, "_hfs_sampler", sampler)
        object.__setattr__(self, "_hfs_hints", hints)

    def __iter__(self) -> Iterator[Any]:
        sampler = self._hfs_sampler
        limit = orders.DRAW_AHEAD
        if hasattr(sampler, "__len__"):
            try:
                limit = len(sampler)
            except (TypeError, NotImplementedError):
                pass  # a wrapper of something that has none
        # Begun now as the bare one would be, drawn when the first item is asked for: so everything that has a random
        # state sees the same calls in the same order.
        return _given_out(iter(sampler), limit, orders.epoch_of(sampler), sampler, self._hfs_hints)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any sampler, and whatever its attributes are
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # copying and pickling look for these, and mean this object
        return getattr(object.__getattribute__(self, "_hfs_sampler"), name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any sampler, and whatever its attributes are
        setattr(self._hfs_sampler, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._hfs_sampler, name)

    def __dir__(self) -> Iterable[str]:
        return dir(self._hfs_sampler)

    def __repr__(self) -> str:
        return f"hinted({self._hfs_sampler!r})"

    def __copy__(self) -> _Unsized:
        return type(self)(copy.copy(self._hfs_sampler), self._hfs_hints)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._hfs_sampler, self._hfs_hints)

    @property  # type: ignore[misc] # what unittest.mock does too: isinstance asks it when the type does not fit
    def __class__(self) -> type:
        """The sampler's class to isinstance, so that frameworks treat it as what it is; not of plain containers."""
        kind = type(self._hfs_sampler)
        return type(self) if kind.__module__ in {"builtins", "numpy", "torch"} else kind


class Hinted(_Unsized):
    """One of a sampler that has a length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._hfs_sampler)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - any sampler, and whatever its attributes are
        return self._hfs_sampler[index]
