"""What the index of the cache knows of the files of one directory, as the namespace takes it in."""

from __future__ import annotations

from typing import NamedTuple

from hfs.mountd.base.attributes import Attributes


class KeptPage(NamedTuple):
    """Some names: regular files with one name, on the file system of the source's root."""

    names: list[bytes]
    seen: bytes
    """What was seen of each; see `base.seen`."""
    objects: list[int]
    """The number of what is staged of each."""
    last_name: bytes
    """Where the next page begins."""


class KeptFile(NamedTuple):
    """A file that was told of by the number of its object."""

    directory: int
    """The inode of the directory that it was seen in."""
    name: bytes
    attributes: Attributes
