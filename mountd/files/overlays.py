"""Overlays over the mount (`--io-mode overlay`): where their kernel finds what is staged, and when they are made anew.

An overlay asks for two attributes of a file when its name is first looked up, and opens the object by itself then
(mountd/native/plane/overlay.c answers for leaves, `value` for all others). The way of a file is fixed from then on, so
what is staged later is read through us until there is a new overlay. Those who have made one (hfs/mounting/overlay.py)
look at a number in the cache directory, which is moved here when a new one is worth it: while much is staged, and when
that has come to an end.

What was told stays: in such a mount no object goes, and none gets holes, as long as the mount is there
(`keeps_objects` of `CacheSettings`). Never tells of an object that is not complete, durable and as it was left.
"""

from __future__ import annotations

import os

import trio

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.cache import Cache
from hfs.mountd.kernel import XattrAnswers
from hfs.mountd.namespace import Node

_PREFIXES = ("user.overlay.", "trusted.overlay.")
_LOOK_S = 1.0
_QUIET_S = 3.0
"""Nothing was staged for so long: that was all for now."""
_MORE = 1.25
"""So many times as many bytes are staged as the overlays know of: a new one is worth it before the end."""
_LEAST_BYTES = 64 << 20
_OFTEN_S = 10.0


class Overlays:
    """Of one mount. `run` is a task of the daemon's."""

    def __init__(self, cache: Cache, answers: XattrAnswers) -> None:
        """`answers`: for leaves."""
        self._cache = cache
        self._answers = answers
        self._on = False
        self._number = 0
        self._shown_bytes = 0
        """What was staged when there was a new one last."""

    def describe(self) -> dict[str, str] | None:
        """For who makes overlays; None: there are none to be made."""
        generation = self._cache.generation
        if not self._on:
            return None
        return {
            "objects": generation.objects,
            "top": generation.top,
            "number": generation.number,
            "makers": generation.makers,
        }

    def is_asked(self, name: str) -> bool:
        """Whether an overlay asks for an attribute of this name. What the source calls so is no business of it."""
        return self._on and name.startswith(_PREFIXES)

    async def value(self, node: Node, name: str) -> bytes | None:
        """Of an attribute that an overlay asks for; None: `node` has none of that name. Asks the source nothing."""
        wanted = name.rpartition(".")[2]
        if node.version is None or wanted not in {"metacopy", "redirect"}:
            return None
        version, path = node.version, node.path
        file = self._cache.files.get_nowait(version, path) or await self._cache.files.get(version, path)
        if not (file.durable and file.plain and file.size) or not await self._cache.lender.is_sound(file):
            return None
        place = self._cache.lender.place(file)
        if place is None:
            return None
        return b"" if wanted == "metacopy" else os.fsencode(f"/{place[1]}")

    async def begin(self, root: Attributes, *, is_new: bool) -> None:
        """Tell from now on, if there is a cache. `root`: of the mount; `is_new`: nobody has served it before."""
        context = self._cache.context
        if context.disk.directory < 0:
            return
        try:
            self._number = (await self._cache.generation.begin(root, is_new=is_new)).number
        except OSError as error:
            context.health.failed(error, "making what overlays are made of")
            return
        self._on = True
        self._answers.tell_overlays()
        self._shown_bytes = self._staged_bytes

    @property
    def _staged_bytes(self) -> int:
        """Committed: what a new overlay would find."""
        return self._cache.context.index.counts.bytes

    async def _move(self, root: Attributes | None = None) -> None:
        self._number += 1
        await self._cache.generation.move(self._number, root)

    async def run(self) -> None:
        """Never returns."""
        moved_s = changed_s = trio.current_time()
        before = self._shown_bytes
        while True:
            await trio.sleep(_LOOK_S)
            now_s, staged_bytes = trio.current_time(), self._staged_bytes
            if staged_bytes != before:
                before, changed_s = staged_bytes, now_s
            if not self._on or staged_bytes <= self._shown_bytes:
                continue
            is_much = staged_bytes >= self._shown_bytes * _MORE + _LEAST_BYTES and now_s >= moved_s + _OFTEN_S
            if is_much or now_s >= changed_s + _QUIET_S:
                self._shown_bytes, moved_s = staged_bytes, now_s
                await self._move()

    async def renew(self, root: Attributes) -> None:
        """What was told may not be so any more: who looks it up anew is told right. `root`: of the mount, now."""
        if self._on:
            await self._move(root)
