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
    async with trio.open_nursery() as nursery:
        sample = Residency(cast("Namespace", namespace), "/m", nursery)
        await sample.refresh()
    assert found == asked
    assert sample.is_looking(4711) == bool(asked)
    assert (sample.figures["sampled_files"], sample.figures["resident_bytes"]) == (len(asked), 40 if asked else 0)
