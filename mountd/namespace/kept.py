"""Names that the index of the cache knows: of a source that never changes, so that a later job does not ask it.

The first look-up in a directory has what is kept of its files brought in, page by page, as leaves; who looks a name up
waits until it is there or nothing is left. What is not kept is asked for as ever.

The node id of such a leaf is made of the number of its object, so that the next daemon finds the file again though it
was noted nowhere. Where the kernel opens files without asking, the objects are found right in the background, and reads
of these leaves need no Python. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from mountd.base.attributes import Attributes
from mountd.base.kept_page import KeptPage
from mountd.base.seen import SeenNames
from mountd.core.background import start_guarded
from mountd.namespace.nodes.leaves import Leaves
from mountd.namespace.nodes.names import Names
from mountd.namespace.nodes.node import Node
from mountd.namespace.nodes.table import NodeTable
from mountd.namespace.tree import Tree

_MAX_DIRECTORIES = 1 << 16
"""Of which it is remembered that they were brought in; of others it is done again."""


class KeptFiles(Protocol):
    """What is kept of the files of this source."""

    @property
    def identity(self) -> int:
        """Of the index whose numbers these are, below 2**21."""

    async def page(self, folder: bytes, after_id: int, /) -> KeptPage | None:
        """Some names of the directory at a path, after this `last_id`; None: the end."""

    async def right(self, page: KeptPage, begin: int, /) -> tuple[Sequence[tuple[bytes, tuple[int, int]]], int]:
        """Of some names from index `begin` on those whose objects are right, with inode and ctime of these; where the
        next ones begin."""

    def find_nowait(self, object_id: int, /) -> tuple[bytes, Attributes] | None:
        """The path and the attributes of a staged file."""


class _Loading:
    def __init__(self) -> None:
        self.ended = False
        self.grown = trio.Event()

    def wake(self) -> None:
        grown, self.grown = self.grown, trio.Event()
        grown.set()


class KeptNames:
    """What was brought in of each directory. `kept`: None: nothing is."""

    def __init__(
        self, kept: KeptFiles | None, nodes: NodeTable, names: Names, leaves: Leaves, tree: Tree, nursery: trio.Nursery
    ) -> None:
        self._kept = kept
        self._nodes = nodes
        self._names = names
        self._leaves = leaves
        self._tree = tree
        self._nursery = nursery
        self._directories: dict[Node, _Loading] = {}
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._reads = False

    def may_come(self, directory: Node) -> bool:
        """Whether names of `directory` may be kept that are not brought in yet."""
        if self._kept is None or directory.children is None:
            return False
        loading = self._directories.get(directory)
        return loading is None or not loading.ended

    async def wait(self, directory: Node, is_enough: Callable[[], object] = lambda: False) -> None:
        """Until all that is kept of `directory` is known, or `is_enough()`."""
        if self._kept is None or directory.children is None:
            return
        loading = self._directories.get(directory)
        if loading is None:
            loading = self._directories[directory] = _Loading()
            if len(self._directories) > _MAX_DIRECTORIES:
                del self._directories[next(iter(self._directories))]  # who waits there has it in hand
            start_guarded(self._nursery, "names from the index", self._load, self._kept, directory, loading)
        while not loading.ended and not is_enough():
            await loading.grown.wait()

    async def _load(self, kept: KeptFiles, directory: Node, loading: _Loading) -> None:
        last_id = 0
        try:
            while (page := await kept.page(directory.path, last_id)) is not None:
                self._put(directory, page)
                last_id = page.last_id
                loading.wake()
        finally:
            loading.ended = True
            loading.wake()
        if self._reads:
            await self._prepare(kept, directory)

    def _put(self, directory: Node, page: KeptPage) -> None:
        found = SeenNames(page.names, page.seen, bytearray(b"\1") * len(page.names), {})
        for name, attributes in self._leaves.put(directory, found, objects=page.objects):
            if attributes is not None and name not in (directory.children or {}):
                self._tree.seen(directory, name, attributes)

    # -- reads --------------------------------------------------------------------------------------------------------

    def answer_reads(self) -> None:
        """Have reads of leaves answered from their objects, as they are found right, from now on."""
        if self._kept is not None and not self._reads:
            self._reads = True
            start_guarded(self._nursery, "objects for reads", self._prepare_all, self._kept)

    async def _prepare_all(self, kept: KeptFiles) -> None:
        for directory in [directory for directory, loading in self._directories.items() if loading.ended]:
            await self._prepare(kept, directory)

    async def _prepare(self, kept: KeptFiles, directory: Node) -> None:
        last_id = 0
        async with self._one_at_a_time:
            while (page := await kept.page(directory.path, last_id)) is not None:
                last_id, begin = page.last_id, 0
                while begin < len(page.names):
                    found, begin = await kept.right(page, begin)
                    for name, (inode, ctime_ns) in found:
                        self._leaves.found_right(directory, name, inode, ctime_ns)

    # -- the next daemon ----------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> Node | None:
        """The node of a leaf that an earlier daemon has told the kernel of; None: it is none of these, or has gone."""
        number = self._leaves.object_of(node_id)
        found = self._kept.find_nowait(number) if self._kept is not None and number is not None else None
        if found is None:
            return None
        path, attributes = found
        *above, name = path.split(b"/")
        directory = self._nodes.root
        for part in above:
            dentry = self._names.remembered(directory, part)
            if dentry is None or dentry.node is None:
                return None
            directory = dentry.node
        node = Node(attributes, self._leaves.version_of(attributes), directory, name)
        self._nodes.adopt(node, node_id)
        # As of those that were noted: see `inherited`.
        node.holds = node.lookups = 1
        node.expires_s = math.inf
        if self._names.remembered(directory, name) is None:
            self._nodes.enter(node)
            self._names.put(directory, name, node, math.inf)
        else:
            node.retired = True  # looked up anew, it has another id: who has this one open goes on with it
        return node
