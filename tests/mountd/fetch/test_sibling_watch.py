"""Directories of small files that are watched: bounded, and told apart on two file systems."""

from __future__ import annotations

import stat
from collections.abc import Iterable

import pytest
import trio

from hfs.mountd.core.background import Slices
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.source.listing import Block, Listing
from hfs.policies.prefetch import siblings
from hfs.policies.prefetch.siblings import Siblings
from tests.support.fake_source import attributes, records

FILES = [b"%02d" % number for number in range(20)]


def directory_of(inode: int, device: int = 1) -> Node:
    return Node(attributes(inode, mode=stat.S_IFDIR | 0o755)._replace(device=device), None, None, b"%d" % inode)


async def listing_of(_directory: Node) -> Listing:
    await trio.sleep(0.001)
    found = Listing()
    found.append(records((name, 7, stat.S_IFREG >> 12) for name in FILES))
    found.finish(None)
    return found


async def read(watch: SiblingWatch, directory: Node) -> None:
    for number, name in enumerate(FILES[:10]):
        found = attributes(directory.attributes.inode * 1000 + number, 10)
        watch.opened(Node(found, found.version("f"), directory, name), staged=False)
        await trio.sleep(0.01)


@pytest.mark.slow
async def test_directories_that_nobody_reads_any_more_are_forgotten() -> None:
    policy = Siblings(small_file_bytes=1000, budget_bytes=10_000)
    most = 0
    async with trio.open_nursery() as nursery:
        watch = SiblingWatch(policy, nursery, listing_of, lambda: None)
        for inode in range(2, 500):
            await read(watch, directory_of(inode))
            await trio.sleep(1)
            assert all(directory.attributes.inode <= inode for directory, _ in watch.next(100))
            await trio.sleep(60)
            most = max(most, len(watch._directories))
    assert policy.directories < 50
    assert most < 200


async def test_equal_inode_numbers_on_two_file_systems_are_two_directories() -> None:
    policy = Siblings(small_file_bytes=1000, budget_bytes=10**6)
    one, other = directory_of(20, device=1), directory_of(20, device=2)
    async with trio.open_nursery() as nursery:
        watch = SiblingWatch(policy, nursery, listing_of, lambda: None)
        await read(watch, one)
        await read(watch, other)
        await trio.sleep(1)
        assert {directory for directory, _ in watch.next(100)} == {one, other}


async def test_the_first_files_of_a_job_come_before_their_siblings() -> None:
    woken: list[float] = []
    async with trio.open_nursery() as nursery:
        watch = SiblingWatch(
            Siblings(small_file_bytes=1000, budget_bytes=10**6),
            nursery,
            listing_of,
            lambda: woken.append(trio.current_time()),
        )
        for inode in (20, 21):  # one job, and a later one
            begin_s = trio.current_time()
            await read(watch, directory_of(inode))
            await trio.sleep(0.3)
            assert not watch.next(100)
            await trio.sleep(0.2)
            assert {directory.attributes.inode for directory, _ in watch.next(100)} == {inode}
            assert any(begin_s + 0.45 < at_s < begin_s + 0.55 for at_s in woken), "whoever fetches was told"
            await trio.sleep(100)


async def test_the_names_of_a_directory_are_made_in_steps_and_not_at_all_where_they_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    each: list[int] = []
    files = Block.files

    def counted(block: Block) -> list[bytes]:
        found = files(block)
        made.append(len(found))
        return found

    class Steps(Slices):
        async def carry_out(self, steps: Iterable[object]) -> None:
            for _ in steps:
                each.append(sum(made) - sum(each))

    names = [b"%06d" % number for number in range(10_000)]

    async def listing_of_many(_directory: Node) -> Listing:
        found = Listing(Steps())
        found.append(records((name, 7, stat.S_IFREG >> 12) for name in names))
        found.finish(None)
        return found

    monkeypatch.setattr(Block, "files", counted)
    async with trio.open_nursery() as nursery:
        policy = Siblings(small_file_bytes=1000, budget_bytes=10**6)
        watch = SiblingWatch(policy, nursery, listing_of_many, lambda: None)
        await read(watch, directory_of(20))
        await trio.sleep(1)
        assert (sum(made), policy.directories) == (len(names), 1)
        assert max(each) <= 2500
        assert watch.next(100)
        made.clear()
        monkeypatch.setattr(siblings, "_MAX_NAMES", 15_000)
        await read(watch, directory_of(21))
        await trio.sleep(1)
        assert (made, policy.directories) == ([], 1)
