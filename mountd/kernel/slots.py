"""The table of slots: regular files, each hard link by itself, that nobody in Python has a node of.

Kept by the data plane, which answers look-ups of their names and counts them (mountd/native/plane/slots.c); filled and
emptied by the namespace alone.
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hfs.mountd.core.attributes import SeenNames
from hfs.mountd.kernel.plane import DataPlane
from hfs.mountd.native.extension import EXTENSION

_LONGEST_S = 86_400.0 * 365 * 100
"""In nanoseconds it has room in 63 bits; the kernel is told of a day at most."""

_SHARDS = 1024
"""SLOT_SHARDS in mountd/native/plane/plane.h: so many calls go over all of the table."""
_HELD = struct.Struct("=QB")

_Taken = tuple[int, int, bytes, int, int, bytes, int, int]


_HEADER = struct.Struct("=IiQ")  # struct fuse_out_header
_INVAL_INODE, _INVAL_ENTRY, _INC_EPOCH = 2, 3, 8  # enum fuse_notify_code
_INODE = struct.Struct("=Qqq")  # struct fuse_notify_inval_inode_out; from a negative offset on no page goes
_EXPIRE_ONLY = 1  # FUSE_EXPIRE_ONLY
_ENTRY = struct.Struct("=QII")  # struct fuse_notify_inval_entry_out


def forget_all_names(connection_fd: int) -> bool:
    """The kernel looks up every name of the mount anew when it needs it. False: it cannot (before Linux 6.16).

    A message on the connection that libfuse has no words for yet. Blocks: the kernel waits for the directory, which a
    look-up under way may hold, so whoever answers look-ups must not wait for this.
    """
    try:
        os.write(connection_fd, _HEADER.pack(_HEADER.size, _INC_EPOCH, 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def expire_names(connection_fd: int, directory_id: int, names: Iterable[bytes]) -> None:
    """The kernel looks these names in one directory up anew when it needs them, and keeps what is as it was: nobody's
    working directory loses its name. Before Linux 6.2 as `forget_names`."""
    _tell_of_names(connection_fd, directory_id, names, _EXPIRE_ONLY)


def forget_attributes(connection_fd: int, node_ids: Iterable[int]) -> None:
    """The kernel asks for the attributes of these nodes anew when it needs them; their pages stay. Those that it does
    not know are no error. Waits for nothing."""
    for node_id in node_ids:
        if not _told(connection_fd, _INVAL_INODE, _INODE.pack(node_id, -1, 0)):
            return


def let_go_of_pages(connection_fd: int, node_ids: Iterable[int]) -> None:
    """As `forget_attributes`, and no page of them stays. Waits for pages that READs have locked."""
    for node_id in node_ids:
        if not _told(connection_fd, _INVAL_INODE, _INODE.pack(node_id, 0, 0)):
            return


def forget_names(connection_fd: int, directory_id: int, names: Iterable[bytes]) -> None:
    """The same of these names in one directory and of everything below. Those that it does not know are no error."""
    _tell_of_names(connection_fd, directory_id, names, 0)


def _tell_of_names(connection_fd: int, directory_id: int, names: Iterable[bytes], flags: int) -> None:
    for name in names:
        if not _told(connection_fd, _INVAL_ENTRY, _ENTRY.pack(directory_id, len(name), flags) + name + b"\0"):
            return


def _told(connection_fd: int, code: int, body: bytes) -> bool:
    """False: the mount is gone."""
    try:
        os.write(connection_fd, _HEADER.pack(_HEADER.size + len(body), code, 0) + body)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ENODEV, errno.EBADF):
            return False
        if error.errno != errno.ENOENT:
            raise
    return True


class TakenSlot(NamedTuple):
    """One that was taken out of the table."""

    node_id: int
    """As the kernel knows it."""
    directory_id: int
    name: bytes
    look_ups: int
    """That the kernel holds."""
    valid_s: float
    """For how long its name and attributes are good, from now on; not positive: they are past their time."""
    seen: bytes
    """Its attributes, as in `core.attributes`."""
    opens: int = 0
    """Handles of it that are open, all with its id for a number."""
    number: int = -1
    """Of one that is, or may be, open: where the next daemon would find it until it is `written_down`."""


class SlotFigures(NamedTuple):
    """For the status."""

    known: int = 0
    held: int = 0
    """By the kernel."""
    open: int = 0
    look_ups: int = 0
    """That were answered."""
    attributes: int = 0


class SlotTable:
    """The one table of this process; directories are known by their node ids. Waits only for answers under way."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    @property
    def runs(self) -> bool:
        """The threads of the data plane answer."""
        return self._plane.runs

    def begin(self, first_id: int) -> None:
        """It is empty, and gives out node ids from this one on, 2**38 at most."""
        EXTENSION.plane_slots_begin(first_id)

    def become_stateless(self) -> None:
        """Opens do not reach us any more: look-ups of empty files come to us."""
        EXTENSION.plane_slots_become_stateless()

    def put(
        self, directory_id: int, found: SeenNames, skip: bytearray, *, valid_s: float, objects: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        """Each name is a slot from now on, for so long, unless its byte of `skip` is 1.

        `objects`: none, or the number of what is staged of each.

        How many are new; the indexes of those that are none now: skipped, or another version is there, which stays.
        """
        valid_ns = int(min(valid_s, _LONGEST_S) * 1e9)
        added, left = EXTENSION.plane_slots_put(
            directory_id, found.names, found.seen, skip, array("Q", objects), valid_ns
        )
        return added, [index for index, is_left in enumerate(left) if is_left]

    def take(self, directory_id: int, name: bytes) -> TakenSlot | None:
        """It is ours from now on: requests for it come to us."""
        return _slot(EXTENSION.plane_slots_take(directory_id, name))

    def take_id(self, node_id: int) -> TakenSlot | None:
        """The same, by the id that the kernel knows."""
        return _slot(EXTENSION.plane_slots_take_id(node_id))

    def count(self, handle: int, opens: int) -> int:
        """Where so many that have this handle open are counted from now on (`DataPlane.count`); -1: there are too many
        handles."""
        counter: int = EXTENSION.plane_new_count(handle, opens)
        return counter

    def written_down(self, slot: TakenSlot) -> None:
        """It was taken, and the next daemon of the mount finds what is open of it elsewhere now."""
        if slot.number >= 0:
            EXTENSION.plane_slots_written_down(slot.number)

    def unknown(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """Those of them that are not slots, or past their time."""
        unknown: list[bytes] = EXTENSION.plane_slots_unknown(directory_id, list(names))
        return unknown

    def seen(self, directory_id: int, names: Sequence[bytes]) -> bytes:
        """What is known of each, as in `core.attributes`: ENOENT of those that are not slots, or past their time."""
        seen: bytes = EXTENSION.plane_slots_seen(directory_id, list(names))
        return seen

    def expire(self, directory_ids: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        """All slots in these directories are past their time from now on. By directory the names of those that the
        kernel holds. In a thread: it goes over all slots, a tenth of a second for a million."""
        held: dict[int, list[bytes]] = {}
        directories = array("Q", sorted(directory_ids))
        for shard in range(_SHARDS):
            found = EXTENSION.plane_slots_expire(shard, directories)
            at = 0
            while at < len(found):
                directory_id, size = _HELD.unpack_from(found, at)
                at += _HELD.size + size
                held.setdefault(directory_id, []).append(found[at - size : at])
        return list(held.items())

    def sweep(self, at_most: int) -> list[int]:
        """Go over a 1024th of it: those go that the kernel does not hold, if they are past their time, or if there are
        more than `at_most` such. The directories of those that went, one for each."""
        found = array("Q", EXTENSION.plane_slots_sweep(at_most))
        return found.tolist()

    def reserve(self, directory_id: int, names: Sequence[bytes]) -> None:
        """These names are ours: nobody puts slots for them in a delegated directory (`kernel.small_fetches`)."""
        EXTENSION.plane_reserve(directory_id, list(names))

    def try_reserve(self, directory_id: int, names: Sequence[bytes]) -> list[bytes]:
        """As `reserve`, but for those that were fetched for a delegated directory, or are just now: which are given."""
        is_ours = EXTENSION.plane_try_reserve(directory_id, list(names))
        return [name for name, ours in zip(names, is_ours, strict=True) if not ours]

    def unreserve(self, directory_id: int, names: Sequence[bytes]) -> None:
        """They are not any more."""
        EXTENSION.plane_unreserve(directory_id, list(names))

    def delegated_slots(self, directory_id: int) -> int:
        """How many slots others have put in a delegated directory since the last call."""
        count: int = EXTENSION.plane_delegated_slots(directory_id)
        return count

    def recall_directory(self, directory_id: int) -> int:
        """It is not delegated any more; the same number."""
        count: int = EXTENSION.plane_recall_directory(directory_id)
        return count

    @property
    def unheld(self) -> int:
        """How many the kernel does not hold."""
        figures = self.figures()
        return figures.known - figures.held

    def figures(self) -> SlotFigures:
        """What is there, and what was answered."""
        return SlotFigures(*EXTENSION.plane_slots_figures())


def _slot(taken: _Taken | None) -> TakenSlot | None:
    if taken is None:
        return None
    node_id, directory_id, name, look_ups, valid_ns, seen, opens, number = taken
    return TakenSlot(node_id, directory_id, name, look_ups, valid_ns / 1e9, seen, opens, number)
