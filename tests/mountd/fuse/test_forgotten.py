"""Nodes that the kernel gives back, ten thousands at a time where memory is short: they go in slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hfs.mountd.core.background import Slices
from hfs.mountd.fuse import handlers
from hfs.mountd.fuse.handlers import Handlers
from tests.conftest import Logs


class Fast:
    def __init__(self) -> None:
        self.forgotten: list[tuple[int, int]] = []

    def forget(self, node_id: int, count: int) -> None:
        if node_id == 7:
            raise ValueError("a fault of ours")
        self.forgotten.append((node_id, count))


async def test_each_node_that_is_forgotten_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch, logs: Logs) -> None:
    logs.expect("unforeseen error in the background")
    each: list[int] = []
    fast: Any = Fast()

    class Steps(Slices):
        async def carry_out(self, steps: Iterable[object]) -> None:
            for _ in steps:
                each.append(len(fast.forgotten))

    monkeypatch.setattr(handlers, "Slices", Steps)
    nobody: Any = None
    await Handlers(nobody, fast, nobody, nobody, nobody, nobody, nobody).forget([(node, 1) for node in range(1, 10)])
    assert fast.forgotten == [(node, 1) for node in range(1, 10) if node != 7], "one that fails is passed over"
    assert each == [1, 2, 3, 4, 5, 6, 6, 7, 8]
