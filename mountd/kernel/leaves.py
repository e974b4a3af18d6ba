"""The data plane's table of leaves, as Python fills it: see `base.leaf_table` and mountd/native/plane/leaves.c."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from hfs.mountd.base.leaf_table import Leaf
from hfs.mountd.base.seen import SeenNames
from hfs.mountd.kernel import fastpath
from hfs.mountd.kernel.plane import DataPlane

_LONGEST_S = 86_400.0 * 365 * 100
"""In nanoseconds it has room in 63 bits; the kernel is told of a day at most."""

_SHARDS = 1024
"""LEAF_SHARDS in mountd/native/plane/plane.h: so many calls go over all of the table."""
_HELD = struct.Struct("=QB")

_Taken = tuple[int, int, bytes, int, int, bytes, int, int]


class _Extension(Protocol):
    def plane_leaves_begin(self, first_id: int, first_kept_id: int, /) -> None: ...

    def plane_leaves_end(self) -> None: ...

    def plane_leaves_put(
        self, directory: int, names: list[bytes], seen: bytes, skip: bytearray, objects: array[int], valid_ns: int, /
    ) -> tuple[int, bytearray]: ...

    def plane_leaves_take(self, directory: int, name: bytes, /) -> _Taken | None: ...

    def plane_leaves_take_id(self, node: int, /) -> _Taken | None: ...

    def plane_leaves_unknown(self, directory: int, names: list[bytes], /) -> list[bytes]: ...

    def plane_leaves_seen(self, directory: int, names: list[bytes], /) -> bytes: ...

    def plane_leaves_expire(self, shard: int, directories: array[int], /) -> bytes: ...

    def plane_leaves_sweep(self, at_most: int, /) -> bytes: ...

    def plane_own(self, directory: int, names: list[bytes], /) -> None: ...

    def plane_claim(self, directory: int, names: list[bytes], /) -> bytearray: ...

    def plane_disown(self, directory: int, names: list[bytes], /) -> None: ...

    def plane_lent_leaves(self, directory: int, /) -> int: ...

    def plane_unlend(self, directory: int, /) -> int: ...

    def plane_leaves_figures(self) -> tuple[int, int, int, int]: ...


class LeafFigures(NamedTuple):
    """For the status."""

    known: int = 0
    held: int = 0
    """By the kernel."""
    look_ups: int = 0
    """That were answered."""
    attributes: int = 0


class PlaneLeaves:
    """Implements `LeafTable`. There is one table in this process."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._extension = cast(_Extension | None, fastpath.extension())

    @property
    def runs(self) -> bool:
        """The threads of the data plane answer."""
        return self._plane.runs

    def begin(self, first_id: int, first_kept_id: int) -> None:
        """See `LeafTable`."""
        if self._extension is not None:
            self._extension.plane_leaves_begin(first_id, first_kept_id)

    def end(self) -> None:
        """See `LeafTable`."""
        if self._extension is not None:
            self._extension.plane_leaves_end()

    def put(
        self, directory_id: int, found: SeenNames, skip: bytearray, *, valid_s: float, objects: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        """See `LeafTable`."""
        if self._extension is None:
            return 0, list(range(len(found.names)))
        valid_ns = int(min(valid_s, _LONGEST_S) * 1e9)
        added, left = self._extension.plane_leaves_put(
            directory_id, found.names, found.seen, skip, array("Q", objects), valid_ns
        )
        return added, [index for index, is_left in enumerate(left) if is_left]

    def take(self, directory_id: int, name: bytes) -> Leaf | None:
        """See `LeafTable`."""
        return _leaf(self._extension.plane_leaves_take(directory_id, name)) if self._extension is not None else None

    def take_id(self, node_id: int) -> Leaf | None:
        """See `LeafTable`."""
        return _leaf(self._extension.plane_leaves_take_id(node_id)) if self._extension is not None else None

    def unknown(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """See `LeafTable`."""
        if self._extension is None:
            return list(names)
        return self._extension.plane_leaves_unknown(directory_id, list(names))

    def seen(self, directory_id: int, names: Sequence[bytes]) -> bytes | None:
        """See `LeafTable`."""
        return self._extension.plane_leaves_seen(directory_id, list(names)) if self._extension is not None else None

    def expire(self, directory_ids: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        """See `LeafTable`."""
        held: dict[int, list[bytes]] = {}
        directories = array("Q", sorted(directory_ids))
        for shard in range(_SHARDS if self._extension is not None else 0):
            assert self._extension is not None
            found = self._extension.plane_leaves_expire(shard, directories)
            at = 0
            while at < len(found):
                directory_id, size = _HELD.unpack_from(found, at)
                at += _HELD.size + size
                held.setdefault(directory_id, []).append(found[at - size : at])
        return list(held.items())

    def sweep(self, at_most: int) -> list[int]:
        """See `LeafTable`."""
        found = array("Q", self._extension.plane_leaves_sweep(at_most) if self._extension is not None else b"")
        return found.tolist()

    def own(self, directory_id: int, names: Sequence[bytes]) -> None:
        """See `LeafTable`."""
        if self._extension is not None:
            self._extension.plane_own(directory_id, list(names))

    def claim(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """See `LeafTable`."""
        if self._extension is None:
            return []
        is_ours = self._extension.plane_claim(directory_id, list(names))
        return [name for name, ours in zip(names, is_ours, strict=True) if not ours]

    def disown(self, directory_id: int, names: Sequence[bytes]) -> None:
        """See `LeafTable`."""
        if self._extension is not None:
            self._extension.plane_disown(directory_id, list(names))

    def lent_leaves(self, directory_id: int) -> int:
        """See `LeafTable`."""
        return self._extension.plane_lent_leaves(directory_id) if self._extension is not None else 0

    def unlend(self, directory_id: int) -> int:
        """See `LeafTable`."""
        return self._extension.plane_unlend(directory_id) if self._extension is not None else 0

    @property
    def unheld(self) -> int:
        """See `LeafTable`."""
        figures = self.figures()
        return figures.known - figures.held

    def figures(self) -> LeafFigures:
        """What is there, and what was answered."""
        return LeafFigures(*self._extension.plane_leaves_figures()) if self._extension is not None else LeafFigures()


def _leaf(taken: _Taken | None) -> Leaf | None:
    if taken is None:
        return None
    node_id, directory_id, name, look_ups, valid_ns, seen, opens, slot = taken
    return Leaf(node_id, directory_id, name, look_ups, valid_ns / 1e9, seen, opens, slot)
