"""Owner nodes are told once of each chunk that a fill comes by, and again if they could not; whom nobody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.policies.geometry import Extent


async def test_an_owner_is_told_once_of_what_it_has_staged() -> None:
    asked: list[int] = []
    can = [False]

    async def have_staged(path: bytes, version: Version, chunk_bytes: int, extent: Extent) -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(extent.start)
        return can[0]

    peers: Any = SimpleNamespace(have_staged=have_staged)
    source: Any = None
    file: Any = SimpleNamespace(
        version=Version("f" * 16, 1, 100, 1, 1), chunk_bytes=10, chunk=lambda i: Extent(10 * i, 10 * i + 10)
    )
    node: Any = SimpleNamespace(path=b"f")
    owners = Owners(peers, source, reads_a_file=1)
    await owners.tell(node, file, 3)
    can[0] = True
    for index in (3, 3, 4, 3, 4):
        await owners.tell(node, file, index)
    assert asked == [30, 30, 40]


def test_for_another_node_only_what_this_one_owns_is_asked_for_and_never_its_owner() -> None:
    """Two nodes that each take the other for the owner would wait for each other."""
    mine = [False]
    table = SimpleNamespace(asked_first=lambda _path, _index: 1, owned_here=lambda _path, _index: mine[0])
    source: Any = SimpleNamespace(file_systems=SimpleNamespace(is_passing=lambda _path: False))
    peers: Any = SimpleNamespace(owners=table)
    owners = Owners(peers, source, reads_a_file=1)
    assert owners.asks(b"f", 0)
    assert not owners.asks(b"f", 0, in_turn=True)
    mine[0] = True
    assert owners.asks(b"f", 0, in_turn=True), "who owned it before has it, or says at once that not"
