"""The journal: what a second daemon finds is what the first has said, as far as the bounds go, after any kill."""

import os
import stat
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.namespace.journal.facts import DirectoryFact, HandleFact, MountFact, NodeFact
from hfs.mountd.namespace.journal.journal import Inherited, Journal, open_journal
from hfs.mountd.namespace.journal.log import JournalLog
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.wire.handover import Handover
from tests.conftest import Logs
from tests.support.examples import examples
from tests.support.fake_source import ID, attributes
from tests.support.journal_memory import Memory, memory_copy


def a_directory(node_id: int, parent: Node | None, name: bytes) -> Node:
    node = Node(attributes(node_id, mode=stat.S_IFDIR | 0o755), None, parent, name)
    node.id = node_id
    return node


def a_file(node_id: int, parent: Node, name: bytes, size: int = 100, time_ns: int = 1) -> Node:
    found = attributes(node_id, size, time_ns=time_ns)
    node = Node(found, found.version(ID), parent, name)
    node.id = node_id
    return node


ROOT = a_directory(1, None, b"")


def test_the_next_daemon_finds_nodes_handles_and_the_mode() -> None:
    memory = Memory()
    journal = memory.journal()
    below = a_directory(20, ROOT, b"below")
    file = a_file(1 << 62, below, b"odd \xff name")
    for node in (ROOT, below, file):
        journal.nodes.note(node)
    journal.handles.opened(7, file.id, 3, 1 << 40, unique=88)
    journal.handles.opened_directory(8, below.id, unique=90)
    journal.handles.shown(8, 90, 40, 1 << 63)
    journal.mount.becomes_stateless()

    found = memory.inherited()
    assert list(found.nodes) == [
        NodeFact(1, 0, b"", ROOT.attributes, None),
        NodeFact(20, 1, b"below", below.attributes, None),
        NodeFact(1 << 62, 20, b"odd \xff name", file.attributes, file.version),
    ]
    assert list(found.files) == [HandleFact(7, file.id, 3, 1 << 40, 88)]
    assert list(found.directories) == [DirectoryFact(8, 20, 90, 40, 1 << 63)]
    assert found.mount == MountFact(stateless=True)


def test_numbers_of_every_size_come_back() -> None:
    big = (1 << 64) - 1
    odd = Attributes(
        0o100644, big, 7, big >> 32, 0, big, (1 << 63) - 1, 1 << 40, 1 << 22, -5, -(1 << 62), 0, big, "~" + ID
    )
    version = Version(ID, big, odd.size, odd.mtime_ns, odd.ctime_ns)
    fact = NodeFact(big, big, b"n" * 255, odd, version)
    assert NodeFact.read(big, fact.value()) == fact
    far = odd._replace(atime_ns=1 << 70, mtime_ns=-(1 << 70))
    found = NodeFact.read(1, NodeFact(1, 1, b"", far, None).value())
    assert found.attributes == odd._replace(atime_ns=(1 << 63) - 1, mtime_ns=1 - (1 << 63))


def test_a_node_in_doubt_is_known_as_such_until_it_is_believed_or_gone() -> None:
    memory = Memory()
    journal = memory.journal()
    file, other = a_file(20, ROOT, b"f"), a_file(21, ROOT, b"g")
    journal.nodes.note_uncertain(file.id, uncertain=True)  # not noted: the next daemon will not know it anyway
    for node in (ROOT, file, other):
        journal.nodes.note(node)
    assert not any(fact.uncertain for fact in memory.inherited().nodes)
    for node in (file, other):
        journal.nodes.note_uncertain(node.id, uncertain=True)
    journal.nodes.note_uncertain(other.id, uncertain=False)
    assert [fact.node_id for fact in memory.inherited().nodes if fact.uncertain] == [20]
    again = memory.journal(1)
    again.nodes.gone(file.id)
    again.nodes.note(file)
    assert not any(fact.uncertain for fact in memory.inherited().nodes)


def test_of_too_many_the_oldest_that_nothing_needs_go() -> None:
    memory = Memory()
    journal = memory.journal(max_directories=4, max_files=3)
    journal.nodes.note(ROOT)
    chain = ROOT
    for depth in range(2, 6):
        chain = a_directory(depth, chain, b"d%d" % depth)
        journal.nodes.note(chain)
    assert journal.statistics()["directories"] == 5, "a chain holds itself"
    lone = [a_directory(100 + n, ROOT, b"l%d" % n) for n in range(5)]
    for node in lone:
        journal.nodes.note(node)
    assert not journal.nodes.knows(chain.id), "its last one was the oldest slot"
    assert journal.nodes.knows(lone[-1].id), "the newest never goes"
    files = [a_file(200 + n, ROOT, b"f%d" % n) for n in range(9)]
    journal.nodes.note(files[0])
    journal.handles.opened(1, files[0].id, 0, 0, unique=0)
    for node in files[1:]:
        journal.nodes.note(node)
        journal.nodes.note(files[1])  # used again and again
    found = {fact.node_id for fact in memory.inherited().nodes}
    assert found & {node.id for node in files} == {200, 201, 207, 208}, "the open one, and the last three"


def test_a_file_is_noted_at_its_look_up_once_the_kernel_opens_without_asking() -> None:
    journal = Memory().journal()
    journal.nodes.note(ROOT)
    file = a_file(20, ROOT, b"f")
    assert journal.nodes.wants(ROOT)
    assert not journal.nodes.wants(file)
    journal.mount.becomes_stateless()
    assert journal.nodes.wants(file)
    assert not Journal().nodes.wants(ROOT)


def test_a_handle_of_an_unknown_node_and_a_node_without_parents_are_of_no_use() -> None:
    memory = Memory()
    entries = JournalLog(memory.halves)
    lost = a_directory(30, ROOT, b"lost")
    for node, parent_id in (
        (a_file(31, lost, b"f"), 30),
        (a_file(33, lost, b"g"), 32),
        (a_directory(40, None, b""), 41),
    ):
        entries.put(1, node.id, NodeFact(node.id, parent_id, node.name, node.attributes, node.version).value())
    entries.put(1, 41, NodeFact(41, 40, b"round and round", ROOT.attributes, None).value())
    entries.put(2, 5, HandleFact(5, 31, 0, 0, 0).value())
    entries.put(3, 6, DirectoryFact(6, 1, 0).value())
    assert memory.inherited() == Inherited([], [], [])
    assert len(JournalLog(memory.halves)) == 0


def test_without_memory_for_it_the_journal_is_given_up_whole(logs: Logs) -> None:
    logs.expect("the journal is given up")
    memory = Memory()
    journal = memory.journal()
    journal.nodes.note(ROOT)
    journal.nodes.note(a_file(20, ROOT, b"f"))
    for half in memory.halves:
        half.refuses = True
    number = 0
    while journal.on:
        number += 1
        journal.handles.opened(number, 20, 0, 0, unique=0)
    journal.handles.closed(1)
    journal.nodes.note(a_file(21, ROOT, b"g"))
    journal.nodes.gone(20)
    assert journal.statistics() == {"directories": 0, "files": 0, "handles": 0, "bytes": 0}
    for half in memory.halves:
        half.refuses = False
    assert memory.inherited() == Inherited([], [], [])


# -- any order of events ----------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 5)
EVENTS = st.lists(st.tuples(st.sampled_from(["note", "open", "close", "gone", "move"]), NUMBERS, NUMBERS), max_size=80)


@settings(max_examples=examples(100), deadline=None)
@given(EVENTS, st.integers(1, 3), st.integers(1, 3))
@example([("move", 3, 2), ("move", 2, 1)], 1, 1)
def test_any_events_are_read_back_within_the_bounds(
    events: list[tuple[str, int, int]], max_directories: int, max_files: int
) -> None:
    memory = Memory()
    journal = memory.journal(max_directories=max_directories, max_files=max_files)
    directories = [ROOT, *(a_directory(10 + n, ROOT, b"d%d" % n) for n in range(1, 6))]
    files = [a_file(20 + n, directories[n], b"f%d" % n) for n in range(6)]
    handles: dict[int, int] = {}
    journal.nodes.note(ROOT)

    def note(node: Node) -> None:
        if node.parent is not None and not journal.nodes.knows(node.parent.id):
            note(node.parent)
        journal.nodes.note(node)

    for event, one, other in events:
        if event == "note":
            note(directories[one])
        elif event == "open":
            note(files[one])
            number = len(handles) + 1000 * other + 1
            while number in handles:
                number += 1
            journal.handles.opened(number, files[one].id, other, 0, unique=number)
            handles[number] = files[one].id
        elif event == "close" and handles:
            number = sorted(handles)[one % len(handles)]
            journal.handles.closed(number)
            del handles[number]
        elif event == "gone" and files[one].id not in handles.values():
            journal.nodes.gone(files[one].id)
        elif event == "move" and one and other < one:  # never below itself
            directories[one].parent = directories[other]
            note(directories[one])
        found = memory_copy(memory).inherited()
        nodes = {fact.node_id: fact for fact in found.nodes}
        assert {handle.number: handle.node_id for handle in found.files} == handles
        assert {node_id for node_id in nodes if journal.nodes.knows(node_id)} == nodes.keys()
        assert len(nodes) == len(journal.nodes)
        for node in (*directories, *files):
            if node.id in nodes and journal.nodes.knows(node.id):
                assert nodes[node.id].name == node.name
        idle = [fact for fact in found.nodes if fact.version is not None and fact.node_id not in handles.values()]
        assert len(idle) <= max_files
        needed = {fact.parent_id for fact in found.nodes} | {1}
        slots = [fact for fact in found.nodes if fact.version is None and fact.node_id not in needed]
        assert len(slots) <= max(1, max_directories)
    # The next daemon goes on with the same tables.
    assert memory_copy(memory).journal().statistics() | {"bytes": 0} == journal.statistics() | {"bytes": 0}


# -- memfds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def memfds() -> Iterator[tuple[int, int]]:
    fds = os.memfd_create("journal-a"), os.memfd_create("journal-b")
    yield fds
    for fd in fds:
        os.close(fd)


def handover(fds: tuple[int, int], generation: int, minor: int) -> Handover:
    return Handover(-1, b"", -1, fds, generation, device=f"0:{minor}")


def test_the_daemons_of_a_mount_share_two_memfds(memfds: tuple[int, int]) -> None:
    for generation in range(4):
        journal = open_journal(handover(memfds, generation, 7))
        found = journal.take_inherited()
        assert len(found.files) == generation
        journal.nodes.note(ROOT)
        journal.nodes.note(a_file(20 + generation, ROOT, b"f%d" % generation))
        journal.handles.opened(generation + 1, 20 + generation, 0, 0, unique=0)
    other = open_journal(handover(memfds, 4, 8))
    assert other.take_inherited() == Inherited([], [], [], MountFact(device=os.makedev(0, 8))), "another mount"


def test_a_journal_that_cannot_be_had_notes_nothing(logs: Logs) -> None:
    logs.expect("no journal")
    reader, writer = os.pipe()
    try:
        journal = open_journal(handover((reader, writer), 3, 7))
        assert not journal.on
        assert journal.generation == 3
    finally:
        os.close(reader)
        os.close(writer)
