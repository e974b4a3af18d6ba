"""Pages that the mount has of files which overlays are about to read from their objects: the kernel lets go of them.

What is read through us lies in the page cache of the mount, and once more in that of its object as soon as an overlay
opens that. The kernel is told before there are newer overlays: it asks for the attributes of such a file once more
then, and so does whoever looks it up in a newer one for the first time. Later, somebody who was told where it lies
would have to wait for us. Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.errors import SourceError
from hfs.mountd.kernel import XattrAnswers
from hfs.mountd.namespace import Namespace, pages_lost, recall

_AT_ONCE = 2048
"""Told in one go: some 20 ms of a thread. Nodes looked at in a turn of the event loop: a millisecond or two."""
_MOST = 1 << 17
"""Remembered: of more, the pages stay until memory is wanted."""
_AT_MOST_S = 1.0
"""A page that somebody reads just now is waited for: then the others stay."""


class UnusedPages:
    """Of one mount."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        answers: XattrAnswers,
        let_go: Callable[[Sequence[int]], Awaitable[object]],
    ) -> None:
        """`let_go`: the kernel lets go of all pages of these nodes."""
        self._namespace = namespace
        self._cache = cache
        self._answers = answers
        self._let_go = let_go
        self._read: set[int] = set()
        """Nodes that were read through the mount since the kernel was told."""

    def read(self, node_id: int) -> None:
        """The mount has pages of it."""
        if self._cache.telling.has_makers and len(self._read) < _MOST:
            self._read.add(node_id)

    async def let_go(self) -> None:
        """Of all that is staged, and that nobody has open as far as is known here."""
        nodes = list(self._read)
        with trio.move_on_after(_AT_MOST_S):
            for start in range(0, len(nodes), _AT_ONCE):
                some = nodes[start : start + _AT_ONCE]
                unused = [*self._answers.tellable(some), *filter(self._is_unused, some)]
                await self._let_go(unused)
                self._read.difference_update(unused)

    def _is_unused(self, node_id: int) -> bool:
        try:
            node = self._namespace.nodes.node(node_id)
        except SourceError:
            return False  # a slot, or it has gone
        file = self._cache.files.get_nowait(node.version) if node.version is not None else None
        if file is None or not file.durable:
            return False
        recall(node)  # who has it open by that is counted then
        if node.opens:
            return False
        pages_lost(node)
        return True
