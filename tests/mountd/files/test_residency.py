"""The sample of the page cache: whom it asks, and that nobody is asked for nothing."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from hfs.mountd.files import residency
from hfs.mountd.files.residency import Residency
from hfs.mountd.namespace import Namespace


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
    nothing: Any = SimpleNamespace(lender=None)
    async with trio.open_nursery() as nursery:
        sample = Residency(cast("Namespace", namespace), nothing, "/m", nursery, lambda: False)
        await sample.refresh()
    assert found == asked
    assert sample.is_looking(4711) == bool(asked)
    assert (sample.figures["sampled_files"], sample.figures["resident_bytes"]) == (len(asked), 40 if asked else 0)


@pytest.mark.parametrize("reads_objects", [False, True])
async def test_staged_files_are_looked_at_where_the_kernel_reads_them_by_itself(reads_objects: bool) -> None:
    async def lend_some(at_most: int, _use: object) -> list[tuple[int, int] | None]:
        await trio.lowlevel.checkpoint()
        assert at_most > 2
        return looks

    looks: list[tuple[int, int] | None] = [(40, 100), (7, 7)]
    namespace: Any = SimpleNamespace(nodes=SimpleNamespace(files=lambda: iter(())))
    cache: Any = SimpleNamespace(lender=SimpleNamespace(lend_some=lend_some))
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
