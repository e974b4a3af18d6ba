"""Names that lead elsewhere now: whoever comes by an overlay hears of it once a newer overlay stands there.

An overlay keeps to the nodes that it has looked up. Where one has another number now, is not known any more, or was
forgotten by the kernel, the kernel says ESTALE to it, and walks the path once more from the top: that succeeds if a
generation stands there by then that has seen nothing of it yet. So first the number is moved and makers are waited for,
some seconds at most; then the kernel is told. What an overlay has looked up before that, or was about to, is old all
the same, and would be ESTALE for as long as that generation stands there: links, names that did not exist, look-ups
that were under way. So there is a second one, which has seen only what is so now; then whoever has waited is answered.

Meanwhile (`held`) no overlay gets to know a file: what it asks for waits. Look-ups do not: who waits in one has the
directory locked, and the mount's root is where makers put overlays. Until the kernel is told a name leads where it did
(`as_before`), since whoever asks once more would be told ESTALE where the older generation stands still. Files that are
known are read on. Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf

import trio

from hfs.mountd.cache import ExposedObjects
from hfs.mountd.core.attributes import Attributes
from hfs.mountd.kernel import XattrAnswers

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
