"""Which directories are lent to the data plane."""

from __future__ import annotations

import stat
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hfs.mountd.fetch import lending
from hfs.mountd.fetch.lending import Lending, LendingTerms
from hfs.mountd.namespace.nodes.node import Dentry, Node
from tests.support.fake_source import attributes


class Asked:
    """A source, and all else that is asked, which lends anything. `directories`: those that were wanted."""

    def __init__(self) -> None:
        self.directories: list[bytes] = []
        self.threads = SimpleNamespace(open_files=SimpleNamespace(shares=SimpleNamespace(lent=8)))

    async def learn(self, _node: Node) -> None:
        pass

    async def lend(self, path: bytes) -> None:
        self.directories.append(path)

    def may_be_kept(self, _directory: Node) -> bool:
        return False


def directory_of(nodes: int) -> Node:
    directory = Node(attributes(20, mode=stat.S_IFDIR | 0o755), None, None, b"d%d" % nodes)
    directory.children = {b"%d" % number: Dentry(None, 0.0, directory, b"%d" % number) for number in range(nodes)}
    return directory


async def test_a_directory_in_which_very_many_names_are_nodes_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is told to the data plane in one step."""
    monkeypatch.setattr(lending, "_MOST_NODES", 5)
    asked: Any = Asked()
    on: Any = SimpleNamespace(runs=True, on=True, lookups=asked)
    terms = LendingTerms(
        is_wanted=lambda: True,
        passes=lambda: False,
        pushes=True,
        stores=lambda: True,
        owners=None,
        limit_bytes=1 << 20,
        ttl_s=10.0,
        under_way=lambda _directory: [],
    )
    async with trio.open_nursery() as nursery:
        loans = Lending(on, on, asked, asked, terms, on, nursery)
        for nodes in (5, 6):
            await loans.lend(directory_of(nodes))
    assert asked.directories == [b"d5"]
