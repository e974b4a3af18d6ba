"""The resolver: what `ensure` does for each goal, and which place answers a read."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hfs.mountd.fetch import Ensured, Goal, Resolver
from hfs.mountd.namespace import Node
from hfs.policies.geometry import Extent
from tests.support.small_parts import SIZE, Parts, parts_of, tree

NAME = b"d/0"


async def found(parts: Parts) -> tuple[Resolver, Node]:
    node = await parts.namespace.lookups.resolve(NAME)
    assert node.version is not None
    await parts.staging.files.get(node.version, NAME)
    return parts.fetch.resolver, node


async def ensure(parts: Parts, goal: Goal) -> Ensured:
    resolver, node = await found(parts)
    assert node.version is not None
    ensured = await resolver.ensure(node, parts.staging.known[node.version], 0, goal)
    await trio.testing.wait_all_tasks_blocked()
    return ensured


def reads(parts: Parts) -> int:
    return len(parts.read())


@pytest.mark.parametrize("goal", [Goal.STAGED, Goal.HERE])
async def test_what_is_ensured_is_staged_and_read_once(goal: Goal) -> None:
    async with parts_of(tree()) as parts:
        assert await ensure(parts, goal) is Ensured.FETCHED
        assert parts.is_right(NAME)
        assert await ensure(parts, goal) is Ensured.HERE
        assert reads(parts) == 1


async def test_in_memory_is_not_staged() -> None:
    async with parts_of(tree()) as parts:
        assert await ensure(parts, Goal.IN_MEMORY) is Ensured.FETCHED
        assert not parts.staging.chunks
        assert await ensure(parts, Goal.IN_MEMORY) is Ensured.HERE
        assert reads(parts) == 1


async def test_what_is_only_held_in_memory_is_not_staged_yet() -> None:
    async with parts_of(tree()) as parts:
        assert await ensure(parts, Goal.IN_MEMORY) is Ensured.FETCHED
        assert await ensure(parts, Goal.HERE) is Ensured.HERE
        assert not parts.staging.chunks
        assert await ensure(parts, Goal.STAGED) is Ensured.FETCHED
        assert parts.is_right(NAME)


async def test_where_nothing_is_admitted_nothing_is_read_to_be_thrown_away() -> None:
    async with parts_of(tree()) as parts:
        parts.staging.room_bytes = SIZE - 1
        assert await ensure(parts, Goal.STAGED) is Ensured.REFUSED
        assert reads(parts) == 0
        assert await ensure(parts, Goal.HERE) is Ensured.FETCHED  # and held in memory
        assert reads(parts) == 1
        assert not parts.staging.chunks


async def test_what_was_admitted_and_is_not_taken_is_refused() -> None:
    async with parts_of(tree()) as parts:
        parts.staging.put_nowait = lambda *_, **__: False  # type: ignore[method-assign]  # the queue is full
        assert await ensure(parts, Goal.STAGED) is Ensured.REFUSED
        assert reads(parts) == 1


async def test_a_read_is_answered_by_the_first_place_that_has_it() -> None:
    async with parts_of(tree()) as parts:
        resolver, node = await found(parts)
        assert node.version is not None
        file, whole = parts.staging.known[node.version], Extent(0, SIZE)
        assert resolver.peek(file, whole) is None
        for tier in ("source", "staged"):
            got = await resolver.get(node, file, whole)
            assert (got.tier, bytes(got.data)) == (tier, parts.source.content(NAME, whole))
            await trio.testing.wait_all_tasks_blocked()
        peeked = resolver.peek(file, whole)
        assert peeked is not None
        assert peeked.tier == "staged"
        parts.staging.broken = True  # a fault of the cache costs the reader nothing
        got = await resolver.get(node, file, whole)
        assert (got.tier, bytes(got.data)) == ("source", parts.source.content(NAME, whole))
