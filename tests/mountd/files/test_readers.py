"""The accounts of who was served: by process, bounded, and cheap to look up. And who is told of an open:
nobody of one that only looks, and siblings only where no plan names the file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.files import OpenObservers
from hfs.mountd.files.readers import Readers


class Processes:
    """Threads 10 p to 10 p + 9 belong to process 10 p, which is called "p"."""

    def __init__(self) -> None:
        self.looked_up: list[int] = []
        self.gone: set[int] = set()

    def process_of(self, thread: int) -> tuple[int, str] | None:
        self.looked_up.append(thread)
        pid = thread // 10 * 10
        return None if pid in self.gone else (pid, str(pid // 10))


def test_reads_and_bytes_by_process_most_bytes_first() -> None:
    processes = Processes()
    readers = Readers(processes.process_of)
    for thread, size in ((10, 5), (11, 6), (20, 100), (10, 7)):
        readers.served(thread, size)
    assert processes.looked_up == [10, 11, 20]  # each thread once
    assert readers.shown() == [
        {"pid": 20, "command": "2", "reads": 1, "bytes": 100},
        {"pid": 10, "command": "1", "reads": 3, "bytes": 18},
    ]


def test_who_has_gone_stays_in_the_accounts_and_who_was_never_seen_is_a_number() -> None:
    processes = Processes()
    readers = Readers(processes.process_of)
    readers.served(10, 5)
    processes.gone |= {10, 20}
    readers.served(23, 4)
    readers.served(0, 3)
    assert readers.shown() == [
        {"pid": 10, "command": "1", "reads": 1, "bytes": 5},
        {"pid": 23, "command": "", "reads": 1, "bytes": 4},
        {"pid": 0, "command": "(another pid namespace)", "reads": 1, "bytes": 3},
    ]


def test_the_one_not_served_for_longest_is_dropped_and_begins_anew() -> None:
    processes = Processes()
    readers = Readers(processes.process_of, kept=3)
    for thread in (10, 20, 30, 10, 40):
        readers.served(thread, thread)
    assert [reader["pid"] for reader in readers.shown()] == [40, 30, 10]
    readers.served(21, 1)
    assert [(reader["pid"], reader["reads"]) for reader in readers.shown()] == [(40, 1), (10, 2), (20, 1)]


@pytest.mark.slow
def test_both_are_bounded() -> None:
    readers = Readers(lambda thread: (thread // 2, "x"))
    for thread in range(2, 12_000):
        readers.served(thread, 1)
    assert len(readers) == 1024
    assert len(readers._by_thread) <= 8192
    assert len(readers.shown()) == 32


LOOKS = 7


@pytest.mark.parametrize(
    ("thread_id", "size", "planned", "told"),
    [
        (1, 10, False, ["recorder", "pipeline", "plans", "siblings"]),
        (1, 10, True, ["recorder", "pipeline", "plans"]),
        (1, 1000, False, []),  # a large one tells at each read
        (LOOKS, 10, False, []),
    ],
)
def test_who_is_told_of_an_open(thread_id: int, size: int, planned: bool, told: list[str]) -> None:
    heard: list[str] = []
    recorder: Any = SimpleNamespace(touched=lambda *_: heard.append("recorder"))
    plans: Any = SimpleNamespace(opened=lambda *_, **__: heard.append("plans") or planned)
    siblings: Any = SimpleNamespace(opened=lambda *_, **__: heard.append("siblings"))
    nothing: Any = None
    pipeline: Any = SimpleNamespace(delegate_soon=lambda _directory: heard.append("pipeline"))
    node: Any = SimpleNamespace(parent="directory")
    observers = OpenObservers(recorder, plans, siblings, nothing, pipeline, nothing, lambda thread: thread == LOOKS)
    file: Any = SimpleNamespace(size=size, chunk_bytes=100, present=set())
    observers.opened(node, file, thread_id)
    assert heard == told
