"""Overlays over the mount: whether they are offered, what they are told, and when they are to be made anew.

An overlay asks for two attributes of a file when its name is first looked up, and opens the object by itself then
(mountd/native/plane/overlay.c answers for slots, `value` for all others). The way of a file is fixed from then on, so
what is staged later is read through us until there is a new generation. Makers look at a number in the cache directory,
which is moved here when a new one is worth it: while much is staged, when that has come to an end, and where what was
told is not so any more. Only who has the rights of the daemon is told, as whoever mounts an overlay of its own has:
nobody else can make objects stay (`cache.telling`).

Never tells of an object that is not complete, durable and as it was left.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf

import trio

from hfs.mountd.cache import Cache, ExposedObjects
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.files.unused_pages import UnusedPages
from hfs.mountd.kernel import LOOK_AT_MOST_S, DataPlane, XattrAnswers
from hfs.mountd.namespace import Node

_PREFIXES = ("user.overlay.", "trusted.overlay.")
_LOOK_S = 1.0
_QUIET_S = 3.0
"""Nothing was staged for so long: that was all for now."""
_MORE = 0.25
"""So many times as many bytes were staged since as the overlays know of: a new one is worth it before the end."""
_LEAST_BYTES = 64 << 20
_OFTEN_S = 10.0
_MADE_S = 3.0
"""So long after somebody has said that he is about to make one there is one, or there will be none."""
_PROMISES = 4096
_MOST_LOOKS = 256
"""Files that are looked at on the cache disk at a time: if more are asked for, it hangs."""


SHOWN_S = 5.0
"""So long, at most, is waited for a new generation. It takes 30 ms; on a machine where ten processes wait for each
core, more than a second."""

_MOST_STALE = 4096

_AGAIN_S = 0.1
"""Who was answered ESTALE walks the path once more, and only once: not into the next time. At least; where makers took
longer, walks do."""

_TOLD_S = 5.0
"""The kernel is told within milliseconds, if we run."""


class ChangedNames:
    """Names that lead elsewhere now: whoever comes by an overlay hears of it once a newer overlay stands there.

    An overlay keeps to the nodes that it has looked up. Where one has another number now, is not known any more, or was
    forgotten by the kernel, the kernel says ESTALE to it, and walks the path once more from the top: that succeeds if a
    generation stands there by then that has seen nothing of it yet. So first the number is moved and makers are waited
    for, some seconds at most; then the kernel is told. What an overlay has looked up before that, or was about to, is
    old all the same, and would be ESTALE for as long as that generation stands there: links, names that did not exist,
    look-ups that were under way. So there is a second one, which has seen only what is so now; then whoever has waited
    is answered.

    Meanwhile (`held`) no overlay gets to know a file: what it asks for waits. Look-ups do not: who waits in one has the
    directory locked, and the mount's root is where makers put overlays. Until the kernel is told a name leads where it
    did (`as_before`), since whoever asks once more would be told ESTALE where the older generation stands still. Files
    that are known are read on. Event loop only.
    """

    def __init__(self, telling: ExposedObjects, answers: XattrAnswers) -> None:
        """`answers`: who answers overlays without us."""
        self._telling = telling
        self._answers = answers
        self._until_s = -inf
        self._is_untold = False
        self._end = trio.Event()
        self._one_at_a_time = trio.Lock()
        self._let_go_s = -inf
        self._again_s = _AGAIN_S
        self._stale: dict[int, None] = {}
        """Nodes that were answered so."""

    @property
    def held(self) -> bool:
        """Names may lead elsewhere, and a generation that knows of it is about to come."""
        return trio.current_time() < self._until_s

    @property
    def as_before(self) -> bool:
        """The kernel is about to be told of changes: until then names lead where they did, for as long as is asked."""
        return self._is_untold and self.held

    @property
    def concerns_overlays(self) -> bool:
        """Somebody makes them."""
        return self._telling.on and self._telling.makers.shown is not None

    async def hold(self, at_most_s: float = SHOWN_S) -> None:
        """From now on names may lead elsewhere; `changing` comes next."""
        if self._telling.on:
            await self._telling.look()
        if self.concerns_overlays:
            self._hold(at_most_s)

    def _hold(self, at_most_s: float) -> None:
        if not self.held:
            self._end = trio.Event()
        self._until_s = trio.current_time() + at_most_s
        self._answers.hold_overlays(True)

    def _let_go(self) -> None:
        if self.held:
            self._let_go_s = trio.current_time()
        self._until_s = -inf
        self._end.set()
        self._answers.hold_overlays(False)

    @asynccontextmanager
    async def changing(self, root: Attributes | None = None) -> AsyncIterator[None]:
        """The kernel may be told within the block. `root`: of the mount, as it is now."""
        async with self._one_at_a_time:
            await trio.sleep_until(self._let_go_s + self._again_s)
            await self.hold(SHOWN_S + _TOLD_S)
            begun_s = trio.current_time()
            try:
                self._is_untold = True
                is_shown = await self._renew(root, SHOWN_S)
                yield
                self._is_untold = False
                is_shown = await self._renew(root, SHOWN_S if is_shown else 0.0)
                self._again_s = max(_AGAIN_S, trio.current_time() - begun_s) if is_shown else _AGAIN_S
            finally:
                self._is_untold = False
                self._let_go()

    async def _renew(self, root: Attributes | None, at_most_s: float) -> bool:
        """Whether the new generation is shown."""
        if not self._telling.on:
            return True
        number = await self._telling.move(root)
        if not self.concerns_overlays:
            return True
        self._hold(at_most_s + _TOLD_S)
        return await self._telling.wait_shown(number, at_most_s)

    async def wait(self) -> None:
        """Until an answer leads nobody astray."""
        while self.held:
            with trio.move_on_at(self._until_s):
                await self._end.wait()

    async def before_stale(self, node_id: int, forget_names: Callable[[], object]) -> None:
        """Before whoever asks about this node is answered ESTALE. `forget_names` has the kernel look up all names anew,
        and never waits. Nothing, if it was so before: whoever asks again comes by an old generation."""
        if self.held:
            await self.wait()
        elif self._telling.on and node_id not in self._stale:
            await self.hold()
            if self.concerns_overlays:
                self._stale[node_id] = None
                if len(self._stale) > _MOST_STALE:
                    del self._stale[next(iter(self._stale))]
                async with self.changing():
                    forget_names()


class Overlays:
    """Of one mount. `run` is a task of the daemon's."""

    def __init__(
        self,
        cache: Cache,
        answers: XattrAnswers,
        changed: ChangedNames,
        pages: UnusedPages,
        missing: Callable[[], str | None],
        nursery: trio.Nursery,
        *,
        is_wanted: bool,
    ) -> None:
        """`answers`: for slots. `missing`: why there can be none just now; None: there can be. `is_wanted`: they are
        offered where they can be."""
        self._cache = cache
        self._telling = cache.telling
        self._answers = answers
        self._changed = changed
        self._pages = pages
        self._missing = missing
        self._is_wanted = is_wanted
        self._is_begun = False
        self._fault: str | None = None
        self._on = False
        self._shown_bytes = 0
        """What could have been told when there was a new one last; as of `_tellable_bytes`."""
        self._looks: SingleFlight[Version, bool] = SingleFlight(nursery)
        self._promised: dict[Version, str] = {}
        """Where its object lies, of each of which an overlay has heard that there is one. Never by the id of a node,
        which that may have lost since it was asked for."""

    @property
    def missing(self) -> str | None:
        """What stands in their way; None: nothing."""
        if self._cache.context.disk.directory < 0:
            return "there is no cache on a disk"
        return self._fault or self._missing()

    def describe(self) -> dict[str, object] | None:
        """For who makes overlays; None: there are none to be made."""
        generation = self._telling.generation
        if not self._on:
            return None
        return {
            "objects": generation.objects,
            "top": generation.top,
            "number": generation.number,
            "makers": generation.makers,
            "makers_now": self._telling.makers.files,
        }

    def makers_may_come(self) -> None:
        """Somebody is about to make one, if any are offered."""
        if self._on:
            self._telling.expected_until_s = trio.current_time() + _MADE_S

    @property
    def has_makers(self) -> bool:
        """Somebody has one, or is about to make one."""
        return self._telling.has_makers

    # -- telling -----------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until what was looked up before leads where it did, or nobody comes by that generation any more."""
        await self._changed.wait()

    def is_asked(self, name: str) -> bool:
        """Whether an overlay asks for an attribute of this name. What the source calls so is no business of it, and not
        shown: one that lies there asks on while nothing is told."""
        return self._is_wanted and name.startswith(_PREFIXES)

    async def value(self, node: Node, name: str, uid: int) -> bytes | None:
        """Of an attribute that an overlay asks for, with the rights of user `uid`; None: `node` has none of that name.
        Asks the source nothing."""
        wanted, version = name.rpartition(".")[2], node.version
        if uid != os.geteuid() or version is None:
            return None
        if wanted == "redirect":  # it was told that there is one: so there is, as long as it asks
            place = self._promised.get(version) or (await self._place(version, node.path) if self._on else None)
            return os.fsencode(f"/{place}") if place is not None else None
        if wanted != "metacopy" or not self._on:
            return None
        place = await self._place(version, node.path)
        if place is None:
            self._promised.pop(version, None)
            return None
        if not self._telling.tell(int(place.rpartition("/")[2])):
            return None  # but who heard of it before may ask where it is
        if len(self._promised) >= _PROMISES:
            del self._promised[next(iter(self._promised))]
        self._promised[version] = place
        return b""

    async def _place(self, version: Version, path: bytes) -> str | None:
        """Where its object lies below those of the cache, if that is sound, and the disk says so in time."""
        file = self._cache.files.get_nowait(version, path)
        is_sound = None if file is None else file.durable and self._cache.publisher.is_sound_nowait(file)
        if is_sound is None and len(self._looks) < _MOST_LOOKS:
            with trio.move_on_after(LOOK_AT_MOST_S):
                is_sound = await self._looks.run(version, partial(self._is_sound, version, path))
                file = self._cache.files.get_nowait(version, path)
        if file is None or is_sound is None:
            return None
        if not is_sound:
            if file.durable:
                self._cache.verifying.verify_soon(file)  # and told in a later generation, if it is right
            return None
        place = self._cache.publisher.place(file)  # what was true before may not be so any more
        return place[1] if place is not None else None

    async def _is_sound(self, version: Version, path: bytes) -> bool:
        file = await self._cache.files.get(version, path)
        return file.durable and await self._cache.publisher.is_sound(file)

    # -- offering ----------------------------------------------------------------------------------------------------

    async def begin(self, root: Attributes, device: str, *, is_new: bool) -> None:
        """Tell from now on, if there is anything to be told. `root`, `device`: of the mount; `is_new`: nobody has
        served it before."""
        if not self._is_wanted or self.missing is not None:
            if is_new:
                await self._telling.clear()
            return
        try:
            await self._telling.begin(root, device, is_new=is_new)
        except OSError as error:
            self._fault = f"the cache directory cannot be written to: {error}"
            return
        self._is_begun = True
        self._shown_bytes = self._tellable_bytes
        self._tell(on=True)

    def stop(self) -> None:
        """Nothing is told until it is looked again what stands in their way."""
        self._tell(on=False)

    def _tell(self, *, on: bool) -> None:
        self._on = on
        self._answers.tell_overlays(on)

    @property
    def _tellable_bytes(self) -> int:
        """What has come that an overlay may be told of: it grows, whatever goes."""
        return self._cache.committer.entered_bytes + self._telling.sound_again_bytes

    async def run(self) -> None:
        """Never returns."""
        moved_s = changed_s = trio.current_time()
        before = self._shown_bytes
        while True:
            await trio.sleep(_LOOK_S)
            if not self._is_begun:
                continue
            self._answers.give_up_looks()
            now_s, tellable_bytes = trio.current_time(), self._tellable_bytes
            if tellable_bytes != before:
                before, changed_s = tellable_bytes, now_s
            is_possible = self.missing is None
            new_bytes = tellable_bytes - self._shown_bytes
            least_bytes = _MORE * max(0, self._cache.context.index.counts.bytes - new_bytes) + _LEAST_BYTES
            is_much = new_bytes >= least_bytes and now_s >= moved_s + _OFTEN_S
            is_all = new_bytes > 0 and now_s >= changed_s + _QUIET_S
            if is_possible != self._on or (self._on and (is_much or is_all)):
                self._tell(on=is_possible)
                self._shown_bytes, moved_s = tellable_bytes, now_s
                await self._pages.let_go()
                await self._telling.move(is_needed=False)


class KernelReads:
    """What the kernel reads of staged files by itself: files that are passed through, and what overlays open.

    Of those in overlays nobody hears of an open or a read. Known is that somebody has one, and which files were looked
    up in one for the first time since it was made, since they were told then where their object lies. Whether such a
    file is read, and how often, is not known. Never waits.
    """

    def __init__(self, overlays: Overlays, passthrough: Passthrough, plane: DataPlane, metrics: Metrics) -> None:
        self._overlays = overlays
        self._passthrough = passthrough
        self._plane = plane
        self._metrics = metrics

    def has_overlays(self) -> bool:
        """Somebody has an overlay over the mount."""
        return self._overlays.has_makers

    def any(self) -> bool:
        """It may read some now."""
        return len(self._passthrough) > 0 or self.has_overlays()

    def look_ups(self) -> tuple[int, int]:
        """How many were told so far, and the sizes of these files together."""
        figures, metrics = self._plane.figures(), self._metrics
        return (
            metrics["overlay_look_ups"] + figures.overlay_look_ups,
            metrics["overlay_look_up_bytes"] + figures.overlay_look_up_bytes,
        )

    def describe(self) -> dict[str, object]:
        """The key `by_kernel` of the status."""
        look_ups, look_up_bytes = self.look_ups()
        return {"overlays": self.has_overlays(), "look_ups": look_ups, "bytes": look_up_bytes}
