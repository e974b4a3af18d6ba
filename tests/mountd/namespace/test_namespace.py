"""Names and nodes: one node id one version, time-to-live, stale answers, lookup counts."""

from __future__ import annotations

import itertools

import pytest
import trio

from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.namespace.nodes.node import Node, expire, pages_given
from hfs.mountd.namespace.nodes.table import ROOT_ID
from tests.support.fake_source import FakeSource
from tests.support.small_namespace import looked_up, made


async def test_a_path_that_no_file_can_have() -> None:
    namespace, _ = await made(FakeSource())
    for path in (b"../b", b"./a", b"a\0b", b"\0"):
        with pytest.raises(SourceError, match="Invalid argument"):
            await namespace.lookups.resolve(path)


async def test_the_node_id_is_the_inode_number_where_that_is_free() -> None:
    source = FakeSource()
    source.file(b"a", 11, 5)
    source.file(b"one", 1, 5)
    namespace, _ = await made(source, ttl_s=0)
    old = await looked_up(namespace, b"a")
    assert old.id == 11
    assert (await looked_up(namespace, b"one")).id not in (ROOT_ID, 11)
    source.file(b"a", 11, 5, time_ns=2)
    new = await looked_up(namespace, b"a")
    assert new is not old
    assert new.id not in (ROOT_ID, 11)


@pytest.mark.parametrize("name", [b"f", b"d", b"l"])
async def test_another_number_of_the_same_size_and_times_is_counted(name: bytes) -> None:
    """Some file systems make inode numbers anew: nothing has changed, and each look finds another file or directory.
    Both names of a file with two are counted, since each leads to another file."""
    source = FakeSource()
    number = itertools.count(100)

    def renumber() -> None:
        source.file(b"f", next(number), 5)
        source.directory(b"d", next(number))
        source.file(b"l", linked := next(number), 5)
        source.file(b"l2", linked, 5)

    renumber()
    namespace, metrics = await made(source, ttl_s=0)
    await looked_up(namespace, b"l2")
    for found in range(3):
        await looked_up(namespace, name)
        assert metrics["inodes_renumbered"] == found
        renumber()


async def test_what_was_replaced_or_changed_is_not_renumbered() -> None:
    """Other content, the same content copied anew with its mtime kept (its ctime cannot be), another kind of file,
    a name that has gone, and another file system mounted there."""
    source = FakeSource()
    source.directory(b"d", 20)
    for name in (b"size", b"times", b"copied", b"touched", b"gone", b"kind", b"mounted"):
        source.file(name, 11, 5)
    namespace, metrics = await made(source, ttl_s=0)
    for name in list(source.tree):
        await looked_up(namespace, name)
    source.file(b"size", 31, 6)
    source.file(b"times", 32, 5, time_ns=2)
    source.tree[b"copied"] = source.tree[b"copied"]._replace(inode=33, ctime_ns=2)
    source.tree[b"touched"] = source.tree[b"touched"]._replace(ctime_ns=2)
    source.tree[b"kind"] = source.tree[b"d"]._replace(inode=34)
    source.tree[b"mounted"] = source.tree[b"mounted"]._replace(inode=35, device=9, file_system="another")
    source.directory(b"d", 36)
    source.tree[b"d"] = source.tree[b"d"]._replace(mtime_ns=3, ctime_ns=3)
    del source.tree[b"gone"]
    for name in list(source.tree):
        await looked_up(namespace, name)
    assert (await namespace.lookups.child(namespace.root, b"gone")).node is None
    assert metrics["inodes_renumbered"] == 0


async def test_a_source_that_hangs_gives_what_was_known_after_two_seconds() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, metrics = await made(source)
    node = await looked_up(namespace, b"f")
    await trio.sleep(10)
    source.hang = True
    start = trio.current_time()
    assert await namespace.lookups.resolve(b"f") is node
    assert trio.current_time() - start == pytest.approx(2.0)
    assert metrics["stale_served"] == 1
    with pytest.raises(SourceTimeout):  # what was never known cannot be served
        await namespace.lookups.resolve(b"unknown")


async def test_strict_waits() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, metrics = await made(source, strict=True)
    await looked_up(namespace, b"f")
    await trio.sleep(10)
    source.hang = True
    with pytest.raises(SourceTimeout):
        await namespace.lookups.resolve(b"f")
    assert metrics["stale_served"] == 0


async def test_many_attributes_are_asked_for_at_once() -> None:
    source = FakeSource()
    names = [b"%d" % i for i in range(320)]
    for i, name in enumerate(names):
        source.file(name, 100 + i, 1)
    namespace, _ = await made(source)
    start = trio.current_time()
    dentries = await namespace.lookups.children(namespace.root, names)
    assert [d.node.name for d in dentries if d.node] == names
    assert trio.current_time() - start == pytest.approx(source.delay_s)  # all slices at the same time
    await namespace.lookups.children(namespace.root, names)
    assert source.calls.count(("stats", b"")) == 20


async def test_an_entry_that_did_not_fit_keeps_its_node() -> None:
    """A readdir reply that is full: the same name comes again in the next, and must not get a second node."""
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source)
    (dentry,) = await namespace.lookups.children(namespace.root, [b"f"])
    assert dentry.node is not None
    namespace.holds.referenced(dentry.node)
    namespace.holds.not_referenced(dentry.node)
    namespace.holds.referenced(dentry.node)
    assert await namespace.lookups.resolve(b"f") is dentry.node
    assert dentry.node.id == 11


async def test_a_node_that_an_open_directory_still_holds_comes_back_whole() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source)
    (dentry,) = await namespace.lookups.children(namespace.root, [b"f"])
    assert dentry.node is not None
    namespace.holds.referenced(dentry.node)
    namespace.holds.forget(11, 1)
    namespace.holds.referenced(dentry.node)
    assert await namespace.lookups.resolve(b"f") is dentry.node


async def test_an_id_in_use_by_a_push_is_not_given_to_the_next_version() -> None:
    """Bytes of the old version on their way to the kernel must not land in the new version's pages."""
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source, ttl_s=0)
    old = await looked_up(namespace, b"f")
    namespace.holds.hold(old)
    namespace.holds.forget(11, 1)
    source.file(b"f", 11, 5, time_ns=2)
    new = await looked_up(namespace, b"f")
    assert new.id != old.id == 11
    namespace.holds.release(old)
    with pytest.raises(SourceError):
        namespace.nodes.node(11)


async def test_directories_of_two_file_systems_may_have_one_inode_number() -> None:
    source = FakeSource()
    source.directory(b"a", 20)
    source.directory(b"b", 20)
    source.tree[b"b"] = source.tree[b"b"]._replace(device=7)
    namespace, _ = await made(source)
    one, other = await looked_up(namespace, b"a"), await looked_up(namespace, b"b")
    assert one is not other
    assert one.id != other.id


async def test_a_source_that_has_not_answered_is_not_asked_again_for_each_name() -> None:
    source = FakeSource()
    source.directory(b"d", 20)
    for i in range(5):
        source.file(b"d/%d" % i, 30 + i, 5)
    namespace, metrics = await made(source, ttl_s=1)
    nodes = [await looked_up(namespace, b"d/%d" % i) for i in range(5)]
    await trio.sleep(2)
    source.hang = True
    begin = trio.current_time()
    for i, node in enumerate(nodes):
        assert await namespace.lookups.resolve(b"d/%d" % i) is node
        await namespace.freshness.fresh(node)
    assert trio.current_time() - begin == pytest.approx(2)
    assert metrics["stale_served"] >= 10
    source.hang = False
    source.file(b"d/0", 30, 6)
    await trio.sleep(6)
    assert await namespace.lookups.resolve(b"d/0") is not nodes[0]


async def test_each_name_of_a_file_is_a_node_of_its_own_with_the_inode_number_of_the_file() -> None:
    """One of them changes, or goes: the others are what they are."""
    source, changed = FakeSource(), []
    for name in (b"a", b"b", b"c"):
        source.file(name, 11, 5)
    namespace, _ = await made(source, changed=changed.append)
    a, b, c = [await looked_up(namespace, name) for name in (b"a", b"b", b"c")]
    assert len({a.id, b.id, c.id}) == 3
    assert {namespace.nodes.shown_inode(node) for node in (a, b, c)} == {11}
    assert a.version is not None
    assert namespace.nodes.of_version(a.version) == [a, b, c]
    del source.tree[b"a"]
    source.file(b"b", 12, 5, time_ns=2)
    await trio.sleep(11)
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(a)
    assert await namespace.lookups.resolve(b"b") is not b
    await namespace.freshness.fresh(c)
    assert (await namespace.lookups.resolve(b"c"), changed) == (c, [a, b])


async def test_bytes_of_two_states_are_believed_under_no_name() -> None:
    source, changed = FakeSource(), []
    for name in (b"a", b"b", b"c"):
        source.file(name, 11, 5)
    namespace, _ = await made(source, changed=changed.append)
    nodes = [await looked_up(namespace, name) for name in (b"a", b"b", b"c")]
    namespace.holds.forget(nodes[0].id, 1)
    assert nodes[1].version is not None
    namespace.tree.distrust(nodes[1].version)
    assert sorted(node.path for node in changed) == [b"b", b"c"]
    for node in nodes[1:]:
        assert node.stale
        assert namespace.names.known_nowait(namespace.root, node.name) is None, "the source is asked"


async def test_an_open_trusts_the_look_up_just_before_it() -> None:
    """Without a time-to-live each answer about a file that is being written is another version."""
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source, ttl_s=0)
    node = await looked_up(namespace, b"f")
    source.file(b"f", 11, 6, time_ns=2)
    await namespace.freshness.fresh(node)
    assert source.calls.count(("stat", b"f")) == 1
    await trio.sleep(1)
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(node)


async def test_a_new_open_never_gets_the_old_version_though_others_have_it_open() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source)
    old = await looked_up(namespace, b"f")
    namespace.holds.opened(old)
    source.file(b"f", 11, 6, time_ns=2)
    expire(old)
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(old)


async def test_a_listing_of_a_directory_that_was_replaced_expires_its_name() -> None:
    source = FakeSource()
    source.directory(b"d", 20)
    namespace, _ = await made(source)
    old = await looked_up(namespace, b"d")
    source.directory(b"d", 21)
    with pytest.raises(VersionChanged):
        await namespace.listings.whole(old)
    with pytest.raises(VersionChanged):
        await namespace.freshness.fresh(old)
    assert await namespace.lookups.resolve(b"d") is not old


async def test_who_keeps_a_table_of_nodes_is_told_when_one_goes() -> None:
    """Not before: neither while the kernel knows it nor while it is open."""
    source, gone = FakeSource(), set[Node]()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source, gone=(gone.add,))
    node = await looked_up(namespace, b"f")
    namespace.holds.opened(node)
    namespace.holds.forget(node.id, 1)
    assert not gone
    namespace.holds.closed(node)
    assert gone == {node}


async def test_pages_that_the_kernel_has_forgotten_are_not_remembered_as_given() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5)
    namespace, _ = await made(source)
    node = await looked_up(namespace, b"f")
    pages_given(node)
    assert node.pushed
    namespace.holds.forget(node.id, 1)
    assert not node.pushed
    pages_given(node)  # a push that ends late
    assert not node.pushed
