"""The handles in the journal: which open file or directory the kernel knows by which number, and how it is read.

A handle that was noted and whose reply did not leave is found again by the number of the request, which the kernel
sends again; if the one who asked was killed meanwhile, nobody will ever close it, and its file stays pinned while the
mount lives. Event loop only, never waits.
"""

from __future__ import annotations

from hfs.mountd.namespace.journal.facts import DIRECTORY, FILE, DirectoryFact, handle_value
from hfs.mountd.namespace.journal.inherited import Inherited
from hfs.mountd.namespace.journal.noted_nodes import NotedNodes
from hfs.mountd.namespace.journal.writer import JournalWriter

_RESENT = 1 << 63
"""In the number of a request that the kernel has sent again."""


class NotedHandles:
    """`len()`: how many. A handle of a node that is not noted is not noted either."""

    def __init__(self, writer: JournalWriter, nodes: NotedNodes, inherited: Inherited) -> None:
        self._writer = writer
        self._nodes = nodes
        self._handles = {handle.number: handle.node_id for handle in inherited.files}
        """Node ids, of files and of directories."""
        self._handles.update((handle.number, handle.node_id) for handle in inherited.directories)
        for node_id in self._handles.values():
            nodes.opened(node_id)

    def __len__(self) -> int:
        return len(self._handles)

    def clear(self) -> None:
        """The journal is given up."""
        self._handles.clear()

    def opened(self, number: int, node_id: int, backing_id: int, backing_inode: int, unique: int) -> None:
        """An open of a noted node, by request `unique` of the kernel (0: not known), is answered with handle `number`
        now, and passed through to a backing file if its id is not 0."""
        if self._nodes.knows(node_id):
            self._note(FILE, number, node_id, handle_value(node_id, backing_id, backing_inode, unique & ~_RESENT))

    def opened_directory(self, number: int, node_id: int, unique: int) -> None:
        """The same of a directory."""
        if self._nodes.knows(node_id):
            self._note(DIRECTORY, number, node_id, DirectoryFact(number, node_id, unique & ~_RESENT).value())

    def _note(self, kind: int, number: int, node_id: int, value: bytes) -> None:
        if self._writer.put(kind, number, value):
            self._handles[number] = node_id
            self._nodes.opened(node_id)

    def shown(self, number: int, unique: int, shown: int, digest: int) -> None:
        """The reader of directory `number`, opened by request `unique`, is shown names before position `shown`."""
        node_id = self._handles.get(number)
        if node_id is not None:
            fact = DirectoryFact(number, node_id, unique & ~_RESENT, shown, digest)
            self._writer.put(DIRECTORY, number, fact.value())

    def closed(self, number: int) -> None:
        """The kernel lets go of file handle `number`."""
        self._closed(FILE, number)

    def closed_directory(self, number: int) -> None:
        """The same of a directory."""
        self._closed(DIRECTORY, number)

    def _closed(self, kind: int, number: int) -> None:
        node_id = self._handles.pop(number, None)
        if node_id is not None:
            self._writer.drop(kind, number)
            self._nodes.closed(node_id)
