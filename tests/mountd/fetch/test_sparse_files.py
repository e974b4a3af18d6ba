"""Where the data of a file lies: asked once a version, kept if it holds, and done without where the source is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.fetch import resolver
from hfs.mountd.fetch.resolver import SparseFiles
from hfs.policies.geometry import Extent

SIZE = 100_000
VERSION = Version("f" * 16, 1, SIZE, 1, 1)


class SlowSource:
    """Says where data is after `wait_s`, and how often it was asked."""

    def __init__(self) -> None:
        self.files = self
        self.wait_s, self.is_over, self.asked = 0.0, True, 0
        self.error: Exception | None = None

    async def data(self, directory: bytes, name: bytes, version: Version) -> tuple[list[Extent], bool]:
        self.asked += 1
        await trio.sleep(self.wait_s)
        if self.error is not None:
            raise self.error
        return [Extent(50_000, version.size)], self.is_over


async def first_data(sparse: SparseFiles, version: Version = VERSION, *, sectors: int = 0) -> int | None:
    node: Any = SimpleNamespace(links=None, directory=b"", name=b"f", attributes=SimpleNamespace(blocks=sectors))
    return await sparse.seek(node, version, 0, hole=False)


def made(source: SlowSource, nursery: trio.Nursery, *, is_silent: bool = False) -> SparseFiles:
    namespace: Any = SimpleNamespace(silence=SimpleNamespace(is_on=lambda: is_silent))
    return SparseFiles(source, namespace, nursery)  # type: ignore[arg-type]  # a fake


async def test_a_slow_source_is_waited_for_shortly_and_heard_all_the_same() -> None:
    source = SlowSource()
    source.wait_s = 3.0
    async with trio.open_nursery() as nursery:
        sparse, began_s = made(source, nursery), trio.current_time()
        assert await first_data(sparse) == 0  # all is data
        assert trio.current_time() - began_s == 2
        assert await first_data(sparse) == 50_000  # one second later
        assert trio.current_time() - began_s == 3
        assert await first_data(sparse) == 50_000
        assert source.asked == 1


async def test_only_a_file_that_lacks_blocks_is_asked_about_and_no_source_that_is_silent() -> None:
    source = SlowSource()
    async with trio.open_nursery() as nursery:
        assert await first_data(made(source, nursery), sectors=200) == 0
        assert await first_data(made(source, nursery, is_silent=True)) == 0
        assert source.asked == 0


async def test_what_may_be_changed_unseen_is_not_kept_and_a_fault_is_data() -> None:
    source = SlowSource()
    async with trio.open_nursery() as nursery:
        sparse = made(source, nursery)
        source.is_over = False
        assert (await first_data(sparse), await first_data(sparse), source.asked) == (50_000, 50_000, 2)
        source.error = VersionChanged("it has changed")
        assert (await first_data(sparse), source.asked) == (0, 3)


async def test_what_was_asked_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_MAX_KEPT", 4)  # two of each
    source = SlowSource()
    async with trio.open_nursery() as nursery:
        sparse = made(source, nursery)
        for inode, asked in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
            assert await first_data(sparse, VERSION._replace(inode=inode)) == 50_000
            assert source.asked == asked


async def test_chunks_are_empty_that_have_no_byte_of_data_and_cannot_have_got_one() -> None:
    source = SlowSource()
    node: Any = SimpleNamespace(links=None, directory=b"", name=b"f", attributes=SimpleNamespace(blocks=98))
    async with trio.open_nursery() as nursery:
        for is_over, sectors, chunk_bytes, expected in (
            (False, 98, 20_000, []),
            (True, 98, 20_000, [0, 1]),
            (True, 98, 10_000, [0, 1, 2, 3, 4]),
            (True, 180, 20_000, []),  # too little to look for
        ):
            source.is_over, node.attributes.blocks = is_over, sectors
            file: Any = SimpleNamespace(size=SIZE, chunk_bytes=chunk_bytes, version=VERSION)
            assert await made(source, nursery).empty_chunks(node, file, range(SIZE // chunk_bytes)) == expected
