"""A file with many hard links: no step of the event loop takes longer the more there are."""

from __future__ import annotations

import errno
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import trio

from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.namespace import refreshing
from hfs.mountd.namespace.namespace import Namespace
from hfs.mountd.namespace.nodes.links import by_any_name
from hfs.mountd.namespace.nodes.node import SOME_NAMES, Node
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made

MANY = 5000


async def many_names(ttl_s: float = 10.0) -> tuple[FakeSource, Namespace, Node]:
    source = FakeSource()
    names = [b"%d" % i for i in range(MANY)]
    for name in names:
        source.file(name, 11, 5)
    namespace, _ = await made(source, ttl_s=ttl_s)
    node = await looked_up(namespace, names[0])
    await namespace.lookups.children(namespace.root, names)
    assert len(node.dentries) == MANY
    return source, namespace, node


async def test_forgotten_by_the_kernel_a_file_with_many_names_goes_with_the_last_of_them_in_slices() -> None:
    _, namespace, node = await many_names()
    namespace.holds.forget(node.id, 1)
    assert (node.id, len(namespace.names)) == (0, MANY), "no step for all of them"
    assert await looked_up(namespace, b"7") is node, "meanwhile it is known"
    namespace.holds.forget(node.id, 1)
    await trio.sleep(11)
    assert await namespace.names.sweep() == MANY
    assert node.version is not None
    assert namespace.nodes.of_version(node.version) is None


async def test_one_name_more_or_less_of_many_copies_none_of_the_others() -> None:
    source, namespace, node = await many_names()
    assert namespace.root.children is not None
    source.file(b"one more", 11, 5)
    tracemalloc.start()
    try:
        await namespace.lookups.resolve(b"one more")
        for name in (b"0", b"17", b"one more"):
            namespace.names.drop(namespace.root.children[name])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MANY, "a copy takes that"
    assert len(node.dentries) == MANY - 2


async def test_a_refresh_goes_through_all_names_once_and_not_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    _, namespace, node = await many_names(math.inf)
    expired: list[Node] = []

    def expire(node: Node) -> None:
        expired.append(node)
        really_expire(node)

    really_expire = refreshing.expire
    monkeypatch.setattr(refreshing, "expire", expire)

    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    await refreshing.Refreshing(namespace).refresh(b"", lambda _directories: None, at_once)
    assert expired.count(node) == 1
    assert not any(dentry.expires_s > 0 for dentry in node.dentries)


async def test_of_many_names_some_are_asked() -> None:
    source, namespace, node = await many_names()
    asked: list[bytes] = []

    async def ask(_directory: bytes, name: bytes) -> None:
        asked.append(name)
        raise SourceError(errno.ENOENT, "gone")

    with pytest.raises(SourceError):
        await by_any_name(node, ask)
    assert len(set(asked)) == SOME_NAMES
    for i in range(MANY):
        del source.tree[b"%d" % i]
    await trio.sleep(11)
    before = len(source.calls)
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(node)
    assert len(source.calls) - before <= SOME_NAMES


async def test_the_new_node_of_another_mode_has_some_of_many_names_and_gets_the_others() -> None:
    _, namespace, old = await many_names(math.inf)
    fresh = namespace.tree.renew(old)
    assert fresh is not None
    assert len(fresh.dentries) == SOME_NAMES
    assert {await namespace.lookups.resolve(b"%d" % i) for i in range(0, MANY, 50)} == {fresh}
    assert len(fresh.dentries) >= MANY // 50
    assert len(fresh.dentries) + len(old.dentries) == MANY
