"""The data plane in C against the same as a plain dictionary: random requests over a socket pair instead of a mount."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfs.mountd.kernel import Backing, DataPlane, StagedObject
from hfs.mountd.kernel.plane import OpenCounts
from tests.support.examples import examples
from tests.support.fake_plane import FakePlane
from tests.support.plane_kernel import Kernel, reads_nowait, serving

NODES = 5


@pytest.fixture
def served() -> Iterator[tuple[DataPlane, Kernel]]:
    with serving() as both:
        yield both


def test_an_open_and_its_close(served: tuple[DataPlane, Kernel]) -> None:
    plane, kernel = served
    assert kernel.open(5) is None, "nothing is known of it"
    slot = plane.put_opens(5, 99, size=10, valid_s=1000, backing=None)
    assert slot is not None
    assert kernel.open(5) == (99, 2, 0), "pages are kept"
    assert kernel.open(5, os.O_RDWR) is None
    assert kernel.open(5, os.O_RDONLY | os.O_TRUNC) is None
    assert kernel.open(5, resent=True) is None, "an earlier daemon may have answered it"
    assert kernel.ask(77, 5, b"") is None, "no opcode"
    assert not kernel.release(5, 98), "a handle that Python has given out"
    assert plane.count(slot) == 1
    assert kernel.release(5, 99)
    counts = plane.take_opens(5)
    assert (counts.open, counts.opened) == (0, 1)
    assert 0 < counts.last_ns <= time.monotonic_ns()
    assert kernel.open(5) is None
    plane.free_counter(slot)
    (event,), lost = plane.take_events()
    assert (event.node_id, event.thread_id, lost) == (5, 7, 0)


def test_an_object_that_was_changed_is_not_given_out(served: tuple[DataPlane, Kernel], tmp_path: Path) -> None:
    plane, kernel = served
    (tmp_path / "object").write_bytes(b"as it was left")
    found = os.stat(tmp_path / "object")
    directory_fd = os.open(tmp_path, os.O_PATH)
    backing = Backing(3, directory_fd, "object", found.st_ino, found.st_size, found.st_ctime_ns)
    slot = plane.put_opens(5, 99, size=10, valid_s=1000, backing=backing)
    assert slot is not None
    assert kernel.open(5) == (99, 128, 3)
    os.rename(tmp_path / "object", tmp_path / "away")
    assert kernel.open(5) is None
    (tmp_path / "object").write_bytes(b"as it was left")
    assert kernel.open(5) is None, "another file"
    assert plane.take_opens(5).open == 1
    plane.free_counter(slot)
    os.close(directory_fd)


def test_reads(served: tuple[DataPlane, Kernel], tmp_path: Path) -> None:
    plane, kernel = served
    data = bytes(range(250)) * 40
    (tmp_path / "object").write_bytes(data)
    object_fd = os.open(tmp_path / "object", os.O_RDWR)
    if not reads_nowait(tmp_path / "object"):
        pytest.skip("this file system cannot be read without waiting")
    found = os.fstat(object_fd)
    assert kernel.read(5, 0, 100) is None
    assert plane.put_reads(5, StagedObject(object_fd, found.st_ino, len(data), found.st_ctime_ns))
    assert kernel.read(5, 0, 100) == data[:100]
    assert kernel.read(5, 9_990, 100) == data[9_990:], "as far as the file goes"
    assert kernel.read(5, 10_000, 100) == kernel.read(5, 1 << 60, 100) == b""
    assert kernel.read(5, 0, 4 << 20) is None, "more than the kernel asks for"
    assert [reader[:2] for reader in plane.take_served()] == [(7, 4)]
    assert plane.take_served() == []
    os.pwrite(object_fd, b"!", 5000)
    os.close(object_fd)
    assert kernel.read(5, 0, 100) is None, "somebody has changed it"
    plane.take_reads(5)
    with pytest.raises(KeyError):
        plane.take_reads(5)


def test_past_its_time_it_is_asked_for(served: tuple[DataPlane, Kernel]) -> None:
    plane, kernel = served
    assert plane.put_opens(5, 99, size=10, valid_s=0, backing=None) is None
    slot = plane.put_opens(5, 99, size=10, valid_s=1e-9, backing=None)
    assert slot is not None
    assert kernel.open(5) is None
    plane.take_opens(5)
    plane.free_counter(slot)


def test_the_counts_outlive_a_daemon(served: tuple[DataPlane, Kernel]) -> None:
    plane, kernel = served
    plane.stop()  # a thread that answers counts after its reply
    memory = os.memfd_create("counts")
    assert plane.attach(memory) == ({}, {})
    plane.start(kernel.device, 1)
    counter = plane.put_opens(6, 77, size=10, valid_s=1000, backing=None)
    assert counter is not None
    plane.stop()
    again = DataPlane()
    ((handle, counted),) = again.attach(memory).handles.items()
    assert (handle, counted.counter, counted.open) == (77, counter, 0)
    plane.take_opens(6)
    again.free_counter(counter)
    assert again.attach(memory) == ({}, {})
    os.close(memory)
    assert plane.attach(-1) == ({}, {})
    plane.start(kernel.device, 1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "take", "open", "close"]), st.integers(1, NODES), st.integers(0, 3)), max_size=60
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_is_the_plain_dictionary(served: tuple[DataPlane, Kernel], steps: list[tuple[str, int, int]]) -> None:
    plane, kernel = served
    model = FakePlane()
    slots: dict[int, tuple[int, int]] = {}
    opened: list[tuple[int, int]] = []
    number = 100
    for step, node, which in steps:
        if step == "put" and node not in slots:
            number += 1
            mine, its = (each.put_opens(node, number, size=10, valid_s=1000, backing=None) for each in (plane, model))
            assert mine is not None
            assert its is not None
            slots[node] = mine, its
        elif step == "take" and node in slots:
            mine, its = slots.pop(node)
            found, expected = plane.take_opens(node), model.take_opens(node)
            assert found[:2] == OpenCounts(*expected)[:2]
            plane.free_counter(mine)
            model.free_counter(its)
        elif step == "open":
            answer, handle = kernel.open(node), model.open(node)
            assert (answer[0] if answer is not None else None) == handle
            if handle is not None:
                opened.append((node, handle))
        elif step == "close" and opened:
            its_node, handle = opened.pop(which % len(opened))
            assert kernel.release(its_node, handle) == model.release(its_node, handle)
        for its_node, (mine, its) in slots.items():
            assert plane.count(mine) == model.count(its), its_node
    for node, (mine, _) in slots.items():
        plane.take_opens(node)
        plane.free_counter(mine)
