"""Names that the index of the cache knows: of a source that never changes, so that a later job does not ask it.

The first look-up in a directory has what is kept of its files brought in, page by page, as slots. A name that is
looked up before its page has come is asked of the index by itself; a listing waits a moment. What is not kept is asked
for as ever.

Such a slot knows the number of its object: what is staged of it is found by its id alone. Event loop only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from hfs.mountd.cache import StoredPage
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.seen import SeenNames
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Dentry, Node
from hfs.mountd.namespace.nodes.slots import Slots
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.namespace.tree import Tree

_MAX_DIRECTORIES = 1 << 16
"""Of which it is remembered that they were brought in; of others it is done again."""

_LISTING_WAITS_S = 1.0
"""For names of its directory: 100 000 come in half a second. Then the source is asked for those that it needs."""


class StoredFiles(Protocol):
    """What is kept of the files of this source. Directories are known by what they are now."""

    async def page(self, directory: Attributes, after_name: bytes, /) -> StoredPage | None:
        """Some names of a directory, after this `last_name`, or the first; None: the end."""

    def named_nowait(self, directory: Attributes, name: bytes, /) -> Attributes | None:
        """Of the staged file with this name."""

    def forgetting_below(self, path: bytes, /) -> AbstractAsyncContextManager[None]:
        """Names at and below this path are not found any more, in this mount nor in later ones. Until the block ends
        nothing is kept, and none is found."""


class _Loading:
    def __init__(self) -> None:
        self.ended = False
        self.void = False
        """What comes is not to be believed."""
        self.grown = trio.Event()

    def wake(self) -> None:
        grown, self.grown = self.grown, trio.Event()
        grown.set()


class StoredNames:
    """What was brought in of each directory. `kept`: None: nothing is."""

    def __init__(
        self, kept: StoredFiles | None, nodes: NodeTable, names: Names, slots: Slots, tree: Tree, nursery: trio.Nursery
    ) -> None:
        self._kept = kept
        self._nodes = nodes
        self._names = names
        self._slots = slots
        self._tree = tree
        self._nursery = nursery
        self._directories: dict[Node, _Loading] = {}

    def may_come(self, directory: Node) -> bool:
        """Whether names of `directory` may be kept that are not brought in yet."""
        if self._kept is None or directory.children is None or directory.changes:
            return False
        loading = self._directories.get(directory)
        return loading is None or not loading.ended

    def look_up_nowait(self, directory: Node, name: bytes) -> Dentry | None:
        """What is kept of this name, though its page has not come yet. Has it brought in."""
        if self._kept is None or not self.may_come(directory):
            return None
        self._loading(self._kept, directory)
        attributes = self._kept.named_nowait(directory.attributes, name)
        return self._tree.seen(directory, name, attributes) if attributes is not None else None

    async def wait(self, directory: Node, is_enough: Callable[[], object]) -> None:
        """Until all that is kept of `directory` is known, or `is_enough()`, or some time has passed."""
        if self._kept is None or not self.may_come(directory):
            return
        loading = self._loading(self._kept, directory)
        with trio.move_on_after(_LISTING_WAITS_S):
            while not loading.ended and not is_enough():
                await loading.grown.wait()

    def forgetting_below(self, path: bytes) -> AbstractAsyncContextManager[None]:
        """What the index has of names at and below this path is not to be believed any more. In the block what was
        brought in of it is `void`."""
        return contextlib.nullcontext() if self._kept is None else self._kept.forgetting_below(path)

    def void(self, directory: Node) -> None:
        """What is being brought in of this directory was read before that."""
        loading = self._directories.get(directory)
        if loading is not None:
            loading.void = loading.ended = True
            loading.wake()

    def _loading(self, kept: StoredFiles, directory: Node) -> _Loading:
        loading = self._directories.get(directory)
        if loading is None:
            loading = self._directories[directory] = _Loading()
            if len(self._directories) > _MAX_DIRECTORIES:
                del self._directories[next(iter(self._directories))]  # who waits there has it in hand
            start_guarded(self._nursery, "names from the index", self._load, kept, directory, loading)
        return loading

    async def _load(self, kept: StoredFiles, directory: Node, loading: _Loading) -> None:
        last_name = b""
        try:
            while (page := await kept.page(directory.attributes, last_name)) is not None and not loading.void:
                self._put(directory, page)
                last_name = page.last_name
                loading.wake()
        finally:
            loading.ended = True
            loading.wake()

    def _put(self, directory: Node, page: StoredPage) -> None:
        found = SeenNames(page.names, page.seen, bytearray(b"\1") * len(page.names), {})
        left = dict(self._slots.put(directory, found, objects=page.objects))
        for name in self._names.unknown_nowait(directory, list(left)):  # of all others something newer is known
            attributes = left[name]
            if attributes is not None:
                self._tree.seen(directory, name, attributes)
