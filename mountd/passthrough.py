"""Passthrough: which staged files the kernel reads by itself, without asking us.

A complete and durable staged file is made known to the kernel as a backing file when a node of its version is opened,
and forgotten when the last handle goes: the kernel wants the same backing file for all handles of a node. `read_path`
asks for it before it decides how an open is answered (policies/iomode.py has the kernel's rules). Whatever fails here
only means that the file is read through us.

Never decides about a node, never reads a byte. Event loop only; opening the object runs in staging's threads.
"""

from __future__ import annotations

import logging

from mountd import fastpath
from mountd.errors import StagingError
from mountd.metrics import Metrics
from mountd.staging import Staging
from mountd.staging_file import StagedFile

__all__ = ["Passthrough"]

log = logging.getLogger(__name__)


class Passthrough:
    """The backing files of one mount."""

    def __init__(self, staging: Staging, metrics: Metrics) -> None:
        self._staging = staging
        self._metrics = metrics
        self._connection_fd = -1
        self._backings: dict[StagedFile, int] = {}

    def __len__(self) -> int:
        return len(self._backings)

    @property
    def on(self) -> bool:
        """Files are passed through in this mount."""
        return self._connection_fd >= 0

    def start(self, connection_fd: int) -> None:
        """Pass files through from now on. `connection_fd`: the mount's descriptor of /dev/fuse."""
        self._connection_fd = connection_fd

    def stop(self) -> None:
        """The mount is gone, and all backing files with it."""
        self._connection_fd = -1

    def may(self, file: StagedFile) -> bool:
        """Whether a node that nobody has open may be passed through to `file`.

        Not to one that has lost a chunk while others read it: what they have is not known to be right any more.
        """
        return self.on and file.durable

    def acquire_nowait(self, file: StagedFile) -> int | None:
        """As `acquire`, if that needs no thread; else None."""
        backing_id = self._backings.get(file)
        if backing_id is None:
            if not self.may(file):
                return None
            try:
                backing_id = self._staging.lend_nowait(file, self._open)
            except (StagingError, OSError):
                return None  # `acquire` deals with it
            if backing_id is None:
                return None
            self._backings[file] = backing_id
        file.passed += 1
        return backing_id

    async def acquire(self, file: StagedFile) -> int | None:
        """The id of the backing file for one more handle of `file`, which the caller has pinned; give it back with
        `release`. None if the file cannot be passed through now.

        For a node that is passed through already, or if the file `may` be. As long as there is a handle the backing
        file stays the same.
        """
        backing_id = self._backings.get(file)
        if backing_id is None and not self.may(file):
            return None
        # Before the first checkpoint: from now on nobody makes holes in the object.
        file.passed += 1
        if backing_id is not None:
            return backing_id
        try:
            backing_id = await self._register(file)
        except BaseException:
            self.release(file)
            raise
        if backing_id is None:
            self.release(file)
        return backing_id

    def release(self, file: StagedFile) -> None:
        """Undo one `acquire`."""
        file.passed -= 1
        if not file.passed:
            backing_id = self._backings.pop(file, None)
            if backing_id is not None:
                self._close(backing_id)

    async def _register(self, file: StagedFile) -> int | None:
        try:
            backing_id = await self._staging.lend(file, self._open)
        except StagingError:
            return None  # counted there
        except OSError as error:
            self._metrics.add("passthrough_refused")
            log.debug("%r is not passed through: %s", file.path, fastpath.why_refused(error))
            return None
        held = self._backings.get(file)
        if held is None and file.durable and self.on:
            self._backings[file] = backing_id
            return backing_id
        # Another open was faster, or the file was given up meanwhile.
        self._close(backing_id)
        return held

    def _open(self, fd: int) -> int:
        return fastpath.open_backing(self._connection_fd, fd)

    def _close(self, backing_id: int) -> None:
        if self.on:
            fastpath.close_backing(self._connection_fd, backing_id)
