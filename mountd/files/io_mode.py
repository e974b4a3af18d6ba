"""The I/O mode of the mount: which one it is, why, and what stands in the way of the others.

Decided when the mount is up, from what --io-mode asks for and what the kernel and libfuse offer; with
`auto` and --immutable once more when the sizes of the first files are known (policies/iomode.py). Asked at every open
by `read_path` and `fuse`, shown by `status`. The mode only ever changes to stateless: the kernel forgets how to open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hfs.mountd.cache import Cache
from hfs.mountd.core.errors import ConfigError, StagingError
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.kernel import fastpath
from hfs.mountd.namespace import Journal
from hfs.policies.iomode import SMALL_BYTES, Choice, Wanted, choose

log = logging.getLogger(__name__)


class Impediments(NamedTuple):
    """What stands in the way of a mode; None: nothing. Asked at each decision."""

    unseen_opens: Callable[[], str | None]
    """Why an open must not go by unseen."""
    overlays: Callable[[], str | None]


class IoMode:
    """The mode of one mount."""

    def __init__(
        self,
        wanted: Wanted,
        *,
        immutable: bool,
        cache: Cache,
        passthrough: Passthrough,
        journal: Journal,
        missing: Impediments,
        becomes_stateless: Callable[[], object],
    ) -> None:
        """`becomes_stateless` is called before the kernel is told so."""
        self._wanted = wanted
        self._journal = journal
        self._immutable = immutable
        self._cache = cache
        self._passthrough = passthrough
        self._missing = missing
        self._becomes_stateless = becomes_stateless
        self._passthrough_missing: str | None = "the mount is not up yet"
        self._free_backing_id = 0
        """One that the kernel had not given out before."""
        self._small_opens = 0
        self._large_opens = 0
        self._new_opens = 0
        self.choice = Choice("daemon", "the mount is not up yet", final=False)

    async def start(self, connection_fd: int) -> None:
        """Decide, once the kernel's INIT has been answered. Raises ConfigError if --io-mode cannot be had."""
        self._passthrough_missing = fastpath.passthrough_missing() or await self._try(connection_fd)
        try:
            self._choose()
        except ValueError as error:
            raise ConfigError(f"io-mode: {self._wanted} is not possible here: {error}") from None
        if self._passthrough_missing is None and self.choice.mode == "passthrough":
            self._passthrough.start(connection_fd)
            if self._journal.generation:
                self._passthrough.close_lost(self._free_backing_id)

    @property
    def stateless(self) -> bool:
        """Opens are answered once and for all."""
        return self.choice.mode == "stateless"

    @property
    def may_be_stateless(self) -> bool:
        """The same sooner or later."""
        return self.stateless or (not self.choice.final and self._stateless_missing is None)

    @property
    def passes_files(self) -> bool:
        """Staged files are passed through in this mount."""
        return self.choice.mode == "passthrough"

    def passes(self, size: int, *, pushed: bool) -> bool:
        """Whether a file of `size` bytes is passed through once it is staged, as far as the mode goes.

        `pushed`: all of it lies in the page cache of the mount. Then `auto` leaves it there: another open costs the
        daemon 60 us, 100 us with a backing file to be made and dropped. Where it is not, or not any more, passing it
        costs a fifth of pushing it.
        """
        if self.choice.mode != "passthrough":
            return False
        if self._wanted == "passthrough":
            return True
        return not pushed and (self.choice.final or size > SMALL_BYTES)

    def opening(self, size: int, *, staged: bool) -> None:
        """A file of `size` bytes is about to be opened: `auto` may learn from it. `staged`: it is in the index."""
        if self.choice.final:
            return
        if size > SMALL_BYTES:
            self._large_opens += 1
        else:
            self._small_opens += 1
            self._new_opens += not staged
        self._choose()

    @property
    def backing_files(self) -> int:
        """Staged files that the kernel reads by itself now, or may at the next open."""
        return len(self._passthrough)

    def describe(self) -> dict[str, object]:
        """For `hfs status`."""
        return {
            "mode": self.choice.mode,
            "reason": self.choice.reason,
            "asked_for": self._wanted,
            "passthrough": self._passthrough_missing or "available",
            "stateless": self._stateless_missing or "available",
            "overlay": "available" if (why := self._missing.overlays()) is None else f"none: {why}",
            "extension": f"loaded, with libfuse {fastpath.LIBFUSE}",
        }

    @property
    def _stateless_missing(self) -> str | None:
        if not self._immutable:
            return "only with --immutable, since nothing is asked again at an open"
        reason = self._missing.unseen_opens()
        return f"opens are needed: {reason}" if reason is not None else None

    def _choose(self) -> None:
        if self._journal.mount.stateless:
            self._becomes_stateless()
            self.choice = Choice("stateless", "the kernel was told so by an earlier daemon of this mount", True)
            return
        self.choice = choose(
            self._wanted,
            immutable=self._immutable,
            passthrough_missing=self._passthrough_missing,
            stateless_missing=self._stateless_missing,
            overlay_missing=self._missing.overlays() if self._wanted == "overlay" else None,
            small_opens=self._small_opens,
            large_opens=self._large_opens,
            new_opens=self._new_opens,
        )
        if self.choice.mode == "stateless":
            self._becomes_stateless()
            self._journal.mount.becomes_stateless()  # before the kernel is told so
        if self.choice.final:
            log.info("io mode %s: %s", self.choice.mode, self.choice.reason)

    async def _try(self, connection_fd: int) -> str | None:
        """Why the kernel does not take a file of the cache as a backing file; None if it does."""
        try:
            backing_id = await self._cache.publisher.publish_empty(partial(fastpath.open_backing, connection_fd))
        except StagingError as error:
            return f"the cache directory cannot be written to: {error}"
        except OSError as error:
            return fastpath.why_refused(error)
        fastpath.close_backing(connection_fd, backing_id)
        self._free_backing_id = backing_id
        return None
