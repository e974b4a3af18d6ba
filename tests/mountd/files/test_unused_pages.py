"""Pages of the mount that the kernel is told to let go of: of what is staged, was read through it, nobody has open."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import trio

from hfs.mountd.core.errors import SourceError
from hfs.mountd.files import UnusedPages

LEAF, UNSTAGED_LEAF, FILE, OPEN, UNSTAGED = range(1, 6)


class Nodes:
    def __init__(self) -> None:
        self.known = {
            number: SimpleNamespace(version=number, opens=int(number == OPEN), delegation=None, pushed=True)
            for number in (FILE, OPEN, UNSTAGED)
        }

    def node(self, node_id: int) -> Any:
        if node_id not in self.known:
            raise SourceError(2, "a leaf")
        return self.known[node_id]


class Parts:
    def __init__(self, *, has_makers: bool = True) -> None:
        self.nodes = Nodes()
        self.gone: list[int] = []
        self.waits_s = 0.0
        files = SimpleNamespace(get_nowait=lambda version: SimpleNamespace(durable=version != UNSTAGED))
        telling = SimpleNamespace(has_makers=has_makers)
        namespace: Any = SimpleNamespace(nodes=self.nodes)
        cache: Any = SimpleNamespace(files=files, telling=telling)
        answers: Any = SimpleNamespace(tellable=lambda nodes: [node for node in nodes if node == LEAF])
        self.pages = UnusedPages(namespace, cache, answers, self._let_go)
        for node in range(1, 6):
            self.pages.read(node)

    async def _let_go(self, nodes: Sequence[int]) -> None:
        await trio.sleep(self.waits_s)
        self.gone += nodes

    async def let_go(self) -> list[int]:
        self.gone.clear()
        await self.pages.let_go()
        return sorted(self.gone)


async def test_of_what_is_open_or_not_staged_the_pages_stay() -> None:
    parts = Parts()
    assert await parts.let_go() == [LEAF, FILE]
    assert not parts.nodes.known[FILE].pushed, "its next open pushes them again"
    assert parts.nodes.known[OPEN].pushed
    assert await parts.let_go() == [], "they have gone"
    parts.pages.read(LEAF)
    parts.nodes.known[OPEN].opens = 0
    assert await parts.let_go() == [LEAF, OPEN]


async def test_without_overlays_nothing_is_remembered() -> None:
    assert await Parts(has_makers=False).let_go() == []


async def test_a_page_that_somebody_has_locked_holds_up_nobody() -> None:
    parts = Parts()
    parts.waits_s = 1000.0
    began_s = trio.current_time()
    assert await parts.let_go() == []
    assert trio.current_time() < began_s + 2
