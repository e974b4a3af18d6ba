"""What is fetched ahead of a reader, and joined on its way: never far ahead of one for whom nothing is staged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.fetch import Misses
from hfs.mountd.files import ReadaheadWindows
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import Fetch
from hfs.policies.prefetch.readahead import Pattern

CHUNK = 1 << 20
FILE = StagedFile(Version("f" * 16, 1, 64 * CHUNK, 1, 1), CHUNK, b"f")


@pytest.mark.parametrize(("admitted", "far"), [(True, True), (False, False)])
def test_what_is_not_staged_is_not_fetched_far_ahead(admitted: bool, far: bool) -> None:
    windows: list[list[int]] = []
    nothing: Any = None
    owners: Any = SimpleNamespace(caches_locally=lambda *_: True)
    cache: Any = SimpleNamespace(admission=SimpleNamespace(admits_nowait=lambda *_: admitted))
    plans: Any = SimpleNamespace(is_planned=lambda *_: False)
    queue: Any = SimpleNamespace(window_nowait=lambda _node, _file, indexes: windows.append(indexes))
    handle: Any = SimpleNamespace(file=FILE, node=SimpleNamespace(path=b"f"), pattern=Pattern())
    readahead = ReadaheadWindows(nothing, owners, cache, nothing, plans, queue, buffer_bytes=64 * CHUNK, pushes=False)
    for start in range(0, 8 * CHUNK, CHUNK // 2):
        readahead.saw(handle, Extent(start, start + CHUNK // 2))
    assert windows
    assert any(len(indexes) > 1 for indexes in windows) is far


@pytest.mark.parametrize(("guessed", "fetch"), [(True, Fetch.CHUNK), (False, Fetch.BYPASS)])
def test_a_chunk_on_its_way_is_joined_if_it_was_guessed(guessed: bool, fetch: Fetch) -> None:
    cache: Any = SimpleNamespace(admission=SimpleNamespace(admits_nowait=lambda *_: True))
    plans: Any = SimpleNamespace(scheduled=lambda *_: None, missed=lambda *_: None)
    history: Any = SimpleNamespace(is_ahead=lambda *_: guessed)
    queue: Any = SimpleNamespace(filled_in_s=lambda *_: 0.0)
    misses = Misses(cache, plans, history, queue)
    node: Any = None
    extent = Extent(5 * CHUNK, 5 * CHUNK + 20_000)
    decision = misses.decide(node, FILE, extent, sequential=False, coming=True, patient=True, is_kept=True)
    assert decision.fetch is fetch
