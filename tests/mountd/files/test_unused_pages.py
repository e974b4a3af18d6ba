"""Pages of the mount that the kernel is told to let go of: of what is staged, was read through it, nobody has open.
And the sample of the page cache: whom it asks, and that nobody is asked for nothing."""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from hfs.mountd.core.errors import SourceError
from hfs.mountd.files import UnusedPages, residency
from hfs.mountd.files.residency import Residency
from hfs.mountd.namespace import Namespace

LEAF, UNSTAGED_LEAF, FILE, OPEN, UNSTAGED = range(1, 6)


class Nodes:
    def __init__(self) -> None:
        self.known = {
            number: SimpleNamespace(version=number, opens=int(number == OPEN), delegation=None, pushed=True)
            for number in (FILE, OPEN, UNSTAGED)
        }

    def node(self, node_id: int) -> Any:
        if node_id not in self.known:
            raise SourceError(2, "a slot")
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


def a_file(name: str, *, opens: int) -> SimpleNamespace:
    attributes = SimpleNamespace(size=100)
    return SimpleNamespace(
        path=name.encode(), opens=opens, pushed=False, passed=False, retired=False, attributes=attributes
    )


@pytest.mark.parametrize(("opens", "asked"), [(0, []), (1, [b"/m/used"])])
async def test_a_process_is_started_only_where_files_are_in_use(
    opens: int, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bytes] = []

    def resident(paths: Iterable[bytes], started: Callable[[int], object]) -> tuple[int, int]:
        started(4711)
        found.extend(paths)
        return 40, 100

    monkeypatch.setattr(residency, "resident", resident)
    files = [a_file("used", opens=opens), a_file("looked-up", opens=0)]
    namespace: Any = SimpleNamespace(nodes=SimpleNamespace(files=lambda: iter(files)))
    nothing: Any = SimpleNamespace(publisher=None)
    async with trio.open_nursery() as nursery:
        sample = Residency(cast("Namespace", namespace), nothing, "/m", nursery, lambda: False)
        await sample.refresh()
    assert found == asked
    assert sample.is_looking(4711) == bool(asked)
    assert (sample.figures["sampled_files"], sample.figures["resident_bytes"]) == (len(asked), 40 if asked else 0)


@pytest.mark.parametrize("reads_objects", [False, True])
async def test_staged_files_are_looked_at_where_the_kernel_reads_them_by_itself(reads_objects: bool) -> None:
    async def publish_some(at_most: int, _use: object) -> list[tuple[int, int] | None]:
        await trio.lowlevel.checkpoint()
        assert at_most > 2
        return looks

    looks: list[tuple[int, int] | None] = [(40, 100), (7, 7)]
    namespace: Any = SimpleNamespace(nodes=SimpleNamespace(files=lambda: iter(())))
    cache: Any = SimpleNamespace(publisher=SimpleNamespace(publish_some=publish_some))
    async with trio.open_nursery() as nursery:
        sample = Residency(cast("Namespace", namespace), cache, None, nursery, lambda: reads_objects)
        await sample.refresh()
        seen: Any = sample.figures["staged"]
        assert (seen["sampled_files"], seen["sampled_bytes"], seen["resident_bytes"]) == (
            (2, 107, 47) if reads_objects else (0, 0, None)
        )
        looks[1] = None  # a kernel that cannot tell
        await sample.refresh()
        seen = sample.figures["staged"]
        assert seen["resident_bytes"] is None
