"""Who is told of an open: nobody of one that only looks, and siblings only where no plan names the file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.files import OpenObservers

LOOKS = 7


@pytest.mark.parametrize(
    ("thread_id", "size", "planned", "told"),
    [
        (1, 10, False, ["recorder", "pipeline", "plans", "siblings"]),
        (1, 10, True, ["recorder", "pipeline", "plans"]),
        (1, 1000, False, []),  # a large one tells at each read
        (LOOKS, 10, False, []),
    ],
)
def test_who_is_told_of_an_open(thread_id: int, size: int, planned: bool, told: list[str]) -> None:
    heard: list[str] = []
    recorder: Any = SimpleNamespace(touched=lambda *_: heard.append("recorder"))
    plans: Any = SimpleNamespace(opened=lambda *_, **__: heard.append("plans") or planned)
    siblings: Any = SimpleNamespace(opened=lambda *_, **__: heard.append("siblings"))
    nothing: Any = None
    pipeline: Any = SimpleNamespace(lend_soon=lambda _directory: heard.append("pipeline"))
    node: Any = SimpleNamespace(parent="directory")
    observers = OpenObservers(recorder, plans, siblings, nothing, pipeline, nothing, lambda thread: thread == LOOKS)
    file: Any = SimpleNamespace(size=size, chunk_bytes=100, present=set())
    observers.opened(node, file, thread_id)
    assert heard == told
