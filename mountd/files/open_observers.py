"""Who is told of opens and closes: recorder, hints, siblings; and the source, whose descriptors then close.

Each is told once for each file that a reader opens; what `residency` opens to look at pages is told to nobody. Decides
nothing about the open itself.
"""

from __future__ import annotations

from collections.abc import Callable

from hfs.mountd.cache import StagedFile
from hfs.mountd.fetch import Lending, SiblingWatch
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.files.recorder import Recorder
from hfs.mountd.files.unused_pages import UnusedPages
from hfs.mountd.hints import FollowedPlans
from hfs.mountd.namespace import Node
from hfs.mountd.source import Source


class OpenObservers:
    """Event loop only. `only_looks`: whether a thread opens files without any use for them (`residency`)."""

    def __init__(
        self,
        recorder: Recorder,
        plans: FollowedPlans,
        siblings: SiblingWatch,
        source: Source,
        lending: Lending,
        pages: UnusedPages,
        only_looks: Callable[[int], bool],
    ) -> None:
        self._recorder = recorder
        self._plans = plans
        self._siblings = siblings
        self._source = source
        self.lending = lending
        self._pages = pages
        self._only_looks = only_looks

    def opened(self, node: Node, file: StagedFile, thread_id: int) -> None:
        """Thread `thread_id` has opened a file; if it is small, it is about to be read."""
        if not 0 < file.size <= file.chunk_bytes or self._only_looks(thread_id):
            return
        self._recorder.touched(node, 0, file.size, thread_id)
        staged = 0 in file.present
        if node.parent is not None:
            self.lending.lend_soon(node.parent)
        if not self._plans.opened(node, staged=staged):
            self._siblings.opened(node, staged=staged)

    def closed(self, handle: FileHandle) -> None:
        """A handle was closed, and its node says so."""
        if handle.backing_id is None:
            self._pages.read(handle.node.id)
        self._plans.closed(handle.node, handle.file)
        version = handle.node.version
        if not handle.node.opens and version is not None and version.size > handle.file.chunk_bytes:
            self._source.idle_files.release(version)
