"""`hinted(sampler, ...)`: tells the daemon what a training will read, and changes nothing else.

    from hfs.hint import hinted
    sampler = hinted(DistributedSampler(dataset, ...), files=[path for path, _ in dataset.samples], mount="/data")

The sampler's own iterator gives out what it gives out when the job asks for it, and never before; what is told ahead
comes from elsewhere (`hfs/training/hinted_iterator.py`). Where there is no daemon, or it dies, refuses or is slow, the
training goes on as with the bare sampler; one warning is logged. Logged and not `warnings.warn`, since a program that
turns warnings into errors must not end for a hint; without any logging set up Python prints it to stderr.

Runs inside training jobs: imports no framework.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hfs.layouts.files import Path, check_samples
from hfs.layouts.layout import Layout
from hfs.training.hint_session import Hints
from hfs.training.hinted_iterator import StandIn, class_for, hinted_iterator, keep

__all__ = ["Hinted", "Hints", "hinted", "hints_of"]


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
    ahead: bool = False,
    index_of: Callable[[Any], Any] | None = None,
) -> Any:  # noqa: ANN401 - it has all that the sampler has
    """The same sampler, whose order the daemon of a mount of hfs is told.

    `sampler` is any iterable of indices or of lists of indices (a batch sampler), or an array of indices; index i means
    the whole of `files[i]` or sample i of `layout` (a Layout, or the path of its file). Give one of the two. Paths are
    absolute and below the mount, or relative to it. The result has all attributes and methods of the sampler.

    `ahead`: this sampler may be copied (its data set is not) and drawn from beside, which shows what it will give out;
    all random states are put back. Not needed for the samplers of PyTorch, torchdata and hfs; of any
    other what it has given out is told. `index_of`: the index in an item, or all of them, where the sampler gives out
    something else: `hinted(sampler, ..., index_of=lambda item: item[1])`.

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
    hints = Hints(
        files=files,
        layout=layout,
        mount=mount,
        control=control,
        name=name,
        learner=learner,
        ahead=ahead,
        index_of=index_of,
    )
    return _stand_in(sampler, hints)


def hints_of(sampler: object) -> Hints | None:
    """What `hinted` has made of this sampler, or of the one that it batches; None: nothing."""
    for _ in range(4):
        if issubclass(type(sampler), Hinted):
            found: Hints = object.__getattribute__(sampler, "_hfs_hints")
            return found
        try:
            sampler = getattr(sampler, "sampler", None)
        except Exception:  # noqa: BLE001 - a sampler may raise anything
            return None
    return None


class Hinted(StandIn):
    """A sampler and its hints. All but `__iter__` is the sampler's."""

    __slots__ = ("_hfs_hints",)

    _hfs_hints: Hints

    def __new__(cls, *arguments: Any, **named: Any) -> Hinted:  # noqa: PYI034 - of another class, made for this one
        """Another sampler of the same class, hinted in the same way: Lightning makes one by `type(sampler)(...)`."""
        made: Hinted = _stand_in(cls._hfs_kind(*arguments, **named), copy.copy(cls._hfs_made_with))  # type: ignore[attr-defined]  # of the class that was made for one sampler
        return made

    def __iter__(self) -> Iterator[Any]:
        return hinted_iterator(self._hfs_bare, self._hfs_hints)

    def __repr__(self) -> str:
        return f"hinted({self._hfs_bare!r})"

    def __copy__(self) -> Hinted:
        return _stand_in(copy.copy(self._hfs_bare), self._hfs_hints)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hinted:
        return _stand_in(copy.deepcopy(self._hfs_bare, memo), copy.copy(self._hfs_hints))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as object's
        if not self._hfs_hints.may_be_pickled():
            return _unhinted, (self._hfs_bare,)
        return _stand_in, (self._hfs_bare, self._hfs_hints)


def _unhinted(sampler: Any) -> Any:  # noqa: ANN401 - any sampler
    return sampler


def _stand_in(sampler: Any, hints: Hints) -> Hinted:  # noqa: ANN401 - any sampler
    kind = class_for(Hinted, type(sampler))
    # A copy, which has no connection: a class goes only when the garbage collector finds it.
    body = {"__slots__": (), "_hfs_kind": type(sampler), "_hfs_made_with": copy.copy(hints)}
    found: Hinted = object.__new__(type(kind.__name__, (kind,), body))
    keep(found, "_hfs_bare", sampler)
    keep(found, "_hfs_hints", hints)
    return found
