"""Names that the index of the cache knows: of a source that never changes, so that a later job does not ask it.

The first look-up in a directory has what is kept of its files brought in, page by page; who looks a name up waits until
it is there or nothing is left. What is not kept is asked for as ever. Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from mountd.base.seen import SeenNames
from mountd.core.background import start_guarded
from mountd.namespace.nodes.leaves import Leaves
from mountd.namespace.nodes.node import Node
from mountd.namespace.tree import Tree


class Page(Protocol):
    """Some names of one directory, and where the next page begins."""

    @property
    def names(self) -> list[bytes]:
        """Regular files with one name, on the file system of the source's root."""

    @property
    def seen(self) -> bytes:
        """What was seen of each; see `base.seen`."""

    @property
    def last_id(self) -> int:
        """For the next page."""


Pages = Callable[[bytes, int], Awaitable[Page | None]]
"""The next page of the directory at a path, after this `last_id`; None: the end."""


_MAX_DIRECTORIES = 1 << 16
"""Of which it is remembered that they were brought in; of others it is done again."""


class _Loading:
    def __init__(self) -> None:
        self.ended = False
        self.grown = trio.Event()

    def wake(self) -> None:
        grown, self.grown = self.grown, trio.Event()
        grown.set()


class KeptNames:
    """What was brought in of each directory. `pages`: None: nothing is kept."""

    def __init__(self, pages: Pages | None, leaves: Leaves, tree: Tree, nursery: trio.Nursery) -> None:
        self._pages = pages
        self._leaves = leaves
        self._tree = tree
        self._nursery = nursery
        self._directories: dict[Node, _Loading] = {}

    def may_come(self, directory: Node) -> bool:
        """Whether names of `directory` may be kept that are not brought in yet."""
        if self._pages is None or directory.children is None:
            return False
        loading = self._directories.get(directory)
        return loading is None or not loading.ended

    async def wait(self, directory: Node, is_enough: Callable[[], object] = lambda: False) -> None:
        """Until all that is kept of `directory` is known, or `is_enough()`."""
        if self._pages is None or directory.children is None:
            return
        loading = self._directories.get(directory)
        if loading is None:
            loading = self._directories[directory] = _Loading()
            if len(self._directories) > _MAX_DIRECTORIES:
                del self._directories[next(iter(self._directories))]  # who waits there has it in hand
            start_guarded(self._nursery, "names from the index", self._load, directory, loading)
        while not loading.ended and not is_enough():
            await loading.grown.wait()

    async def _load(self, directory: Node, loading: _Loading) -> None:
        assert self._pages is not None
        last_id = 0
        try:
            while (page := await self._pages(directory.path, last_id)) is not None:
                last_id = page.last_id
                found = SeenNames(page.names, page.seen, bytearray(b"\1") * len(page.names), {})
                for name, attributes in self._leaves.put(directory, found):
                    if attributes is not None and name not in (directory.children or {}):
                        self._tree.seen(directory, name, attributes)
                loading.wake()
        finally:
            loading.ended = True
            loading.wake()
