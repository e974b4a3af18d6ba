"""The optional extension for attributes, `_attributes.c`: many stats for one release of the interpreter lock."""

from __future__ import annotations

from typing import Protocol, cast

from hfs.mountd.native import compiled


class AttributesNative(Protocol):
    """What it has."""

    def look(self, directory_fd: int, names: list[bytes], device: int, /) -> tuple[bytes, bytearray, int, int]:
        """As `base.seen.SeenNames` has it: what was seen, which are plain; of those the newest ctime, in seconds and
        nanoseconds. Blocks; raises nothing that a stat raises."""


def load() -> AttributesNative | None:
    """The extension; None where it was not built."""
    try:
        return cast("AttributesNative", compiled.load("_attributes"))
    except ImportError:
        return None
