"""What a daemon must know of its predecessor to go on for the kernel, and how it is written down.

    NodeFact       a node id, and what it stands for
    HandleFact     an open file: handle number -> node, backing file, and the request that was answered with it
    DirectoryFact  an open directory, and how far it was read
    MountFact      what holds for the whole mount

Values of a `namespace.journal.log`, each under its kind and number. Pure: bytes in, records out, and back. The layout
is part of the journal's format (`namespace.journal.segment`): another layout needs another number there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hfs.mountd.core.attributes import Attributes, Version

NODE, FILE, DIRECTORY, MOUNT, UNCERTAIN = 1, 2, 3, 4, 5
"""UNCERTAIN has no value: what was read of the node's version may be wrong, and so may the kernel's pages of it."""

_LAST = (1 << 63) - 1

_NODE = struct.Struct("<QIQIIIQQQIqqqQqqHH")
_HANDLE = struct.Struct("<QIQQ")
_DIRECTORY = struct.Struct("<QQqQ")
_MOUNT = struct.Struct("<BQ")


class NodeFact(NamedTuple):
    """A node that the kernel knows by `node_id`. Of a file, one version."""

    node_id: int
    parent_id: int
    """0: it is the root."""
    name: bytes
    attributes: Attributes
    version: Version | None
    """None of a directory."""
    uncertain: bool = False
    """By a UNCERTAIN; not part of the value."""

    def value(self) -> bytes:
        """For the log."""
        a, version = self.attributes, self.version
        source_id = b"" if version is None else version.source_id.encode()
        file_system = a.file_system.encode()
        times = (a.atime_ns, a.mtime_ns, a.ctime_ns)
        if max(times) > _LAST or min(times) < -_LAST:
            times = (_stored(times[0]), _stored(times[1]), _stored(times[2]))
        own = (0, 0) if version is None else (version.mtime_ns, version.ctime_ns)
        fixed = _NODE.pack(
            self.parent_id,
            *(a.mode, a.inode, a.nlink, a.uid, a.gid, a.rdev, a.size, a.blocks, a.block_bytes),
            *times,
            a.device,
            *own,
            len(source_id),
            len(file_system),
        )
        return fixed + source_id + file_system + self.name

    @classmethod
    def read(cls, node_id: int, value: bytes) -> NodeFact:
        """The reverse."""
        parent_id, *numbers, mtime_ns, ctime_ns, length, length_below = _NODE.unpack_from(value)
        at = _NODE.size + length
        source_id, file_system = value[_NODE.size : at].decode(), value[at : at + length_below].decode()
        attributes = Attributes(*numbers)._replace(file_system=file_system)
        name = value[at + length_below :]
        version = Version(source_id, attributes.inode, attributes.size, mtime_ns, ctime_ns) if length else None
        return cls(node_id, parent_id, name, attributes, version)


handle_value = _HANDLE.pack
"""The value of a HandleFact from what follows its number, which an open has no time to make."""


class HandleFact(NamedTuple):
    """An open file."""

    number: int
    node_id: int
    backing_id: int
    """0: the kernel reads through us."""
    backing_inode: int
    """The inode number of the object that it stands for."""
    unique: int
    """The kernel's number of the OPEN that was answered with it; 0: not known."""

    def value(self) -> bytes:
        """For the log."""
        return handle_value(*self[1:])

    @classmethod
    def read(cls, number: int, value: bytes) -> HandleFact:
        """The reverse."""
        return cls(number, *_HANDLE.unpack(value))


class DirectoryFact(NamedTuple):
    """An open directory. Its reader has been shown some of the first `shown` names at most."""

    number: int
    node_id: int
    unique: int
    """As above, of the OPENDIR."""
    shown: int = -1
    """-1: nothing yet."""
    digest: int = 0
    """Of these names in their order; see `Listing.marked`."""

    def value(self) -> bytes:
        """For the log."""
        return _DIRECTORY.pack(*self[1:])

    @classmethod
    def read(cls, number: int, value: bytes) -> DirectoryFact:
        """The reverse."""
        return cls(number, *_DIRECTORY.unpack(value))


class MountFact(NamedTuple):
    """What holds for the whole mount."""

    stateless: bool = False
    """The kernel was told to open without asking, for ever."""
    device: int = 0
    """Which mount: the device number of its file system."""
    source_id: str = ""
    """What the first daemon called SOURCE's file system, if nothing proves which one it is: the keeper holds SOURCE, so
    it is the same one as long as the mount."""

    def value(self) -> bytes:
        """For the log."""
        return _MOUNT.pack(self.stateless, self.device) + self.source_id.encode()

    @classmethod
    def read(cls, value: bytes) -> MountFact:
        """The reverse."""
        stateless, device = _MOUNT.unpack_from(value)
        return cls(bool(stateless), device, value[_MOUNT.size :].decode())


def _stored(time_ns: int) -> int:
    return max(-_LAST, min(time_ns, _LAST))
