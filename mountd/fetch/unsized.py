"""Files that say that they have no bytes, and may have some: procfs and its like, documents that are made when they are
read.

Whether one has is tried once for each node, before its first open is answered. One that has is read from the source
each time, as it is just then; nothing of it is kept, and the kernel is told to ask for every read. Event loop only.
"""

from __future__ import annotations

from hfs.mountd.fetch.chunks.fetcher import Fetcher
from hfs.mountd.namespace import Node, tried
from hfs.mountd.source import Source


class Unsized:
    """All raise SourceError and VersionChanged."""

    def __init__(self, source: Source, fetcher: Fetcher) -> None:
        self._files = source.files
        self._fetcher = fetcher

    async def gives_bytes(self, node: Node) -> bool:
        """Whether a file gives bytes though it says that it has none."""
        version = node.version
        if node.gives_bytes is None and version is not None:
            tried(node, await self._files.gives_bytes(node.directory, node.name, version))
        return bool(node.gives_bytes)

    async def read(self, node: Node, offset: int, size: int) -> bytes:
        """What such a file gives there just now; fewer bytes only at its end."""
        assert node.version is not None
        with self._fetcher.reader_waits():
            return await self._files.read_unsized(node.directory, node.name, node.version, offset, size)
