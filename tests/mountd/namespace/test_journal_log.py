"""The journal's log: whatever byte the process is killed at, what is read is the table before or after that change.

The memory is a bytearray that notes every store and every change of size, so that a kill can be played at each byte of
each of them. One test does it with a real process, a memfd and SIGKILL.
"""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.namespace.journal.log import HEADER_BYTES, JournalLog, Segment, open_memory
from tests.support.examples import examples
from tests.support.journal_memory import Noted, resized

Table = dict[tuple[int, int], bytes]


def table(log: JournalLog) -> Table:
    return {(kind, number): value for kind, number, value in log.items()}


def reopened(images: list[bytearray]) -> JournalLog:
    story: list[tuple[int, int, bytes | None]] = []
    return JournalLog((Noted(0, story, bytes(images[0])), Noted(1, story, bytes(images[1]))), least_records=2)


# Few keys and many changes, so that compactions begin, and end, and are cut off.
CHANGES = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 5), st.none() | st.binary(max_size=30)), min_size=20, max_size=50
)


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(CHANGES, st.randoms(use_true_random=False))
def test_a_kill_at_any_byte_leaves_the_table_before_or_after_the_change(
    changes: list[tuple[int, int, bytes | None]], chance: random.Random
) -> None:
    story: list[tuple[int, int, bytes | None]] = []
    log = JournalLog((Noted(0, story), Noted(1, story)), least_records=2)
    model: Table = {}
    after: list[tuple[int, Table]] = [(len(story), {})]
    for kind, number, value in changes:
        if value is None:
            log.drop(kind, number)
            model.pop((kind, number), None)
        else:
            log.put(kind, number, value)
            model[kind, number] = value
        after.append((len(story), dict(model)))
        assert table(log) == model

    images = [bytearray(HEADER_BYTES), bytearray(HEADER_BYTES)]
    change = 0
    for step, (which, at, data) in enumerate(story):
        while change + 1 < len(after) and after[change + 1][0] <= step:
            change += 1
        allowed = [after[change][1], after[min(change + 1, len(after) - 1)][1]]
        if step < after[0][0]:
            allowed = [{}]
        # A store is done in pieces, in whatever order; a prefix and a random half stand for all of them.
        for cut in range(1, len(data)) if data is not None else ():
            torn = [bytearray(image) for image in images]
            torn[which][at : at + cut] = data[:cut]
            assert table(reopened(torn)) in allowed, f"step {step}, cut {cut}"
        if data is not None:
            torn = [bytearray(image) for image in images]
            for i, byte in enumerate(data):
                if chance.random() < 0.5:
                    torn[which][at + i] = byte
            assert table(reopened(torn)) in allowed
            images[which][at : at + len(data)] = data
        else:
            resized(images[which], at)
        assert table(reopened(images)) in allowed
    assert table(reopened(images)) == model


@settings(max_examples=examples(20), deadline=None)
@given(CHANGES, CHANGES, st.integers(0, 400))
def test_whoever_opens_the_log_goes_on_with_it(
    first: list[tuple[int, int, bytes | None]], then: list[tuple[int, int, bytes | None]], torn: int
) -> None:
    """The second daemon's changes stand behind a record that was never finished."""
    story: list[tuple[int, int, bytes | None]] = []
    memories = (Noted(0, story), Noted(1, story))
    log = JournalLog(memories, least_records=2)
    model: Table = {}
    for changes in (first, then, first):
        for kind, number, value in changes:
            if value is None:
                log.drop(kind, number)
                model.pop((kind, number), None)
            else:
                log.put(kind, number, value)
                model[kind, number] = value
        for memory in memories:
            garbage = random.Random(torn).randbytes(torn % 40)
            end = max(half.end for half in (log._segment, log._before) if half._memory is memory)
            memory.data[end : end + len(garbage)] = garbage[: len(memory.data) - end]
        log = JournalLog(memories, least_records=2)
        assert table(log) == model


def test_it_stays_small_and_no_change_copies_more_than_a_few() -> None:
    story: list[tuple[int, int, bytes | None]] = []
    log = JournalLog((Noted(0, story), Noted(1, story)), least_records=100)
    for number in range(1000):
        log.put(1, number, bytes(100))
    live_bytes = 1000 * 121
    most = 0
    for turn in range(30_000):
        story.clear()
        log.put(1, turn % 1000, bytes(100))
        most = max(most, sum(data is not None and len(data) > 100 for _, _, data in story))
        assert log.memory_bytes < 4.5 * live_bytes
    assert len(log) == 1000
    assert most <= 5


def test_a_log_without_memory_can_be_emptied() -> None:
    story: list[tuple[int, int, bytes | None]] = []
    memories = (Noted(0, story), Noted(1, story))
    log = JournalLog(memories)
    log.put(1, 1, b"value")
    for memory in memories:
        memory.refuses = True
    with pytest.raises(OSError, match="no space"):
        log.put(1, 2, bytes(1 << 20))
    for memory in memories:
        memory.refuses = False
    log.clear()
    assert table(JournalLog(memories)) == {}


def test_garbage_and_other_formats_are_an_empty_log() -> None:
    story: list[tuple[int, int, bytes | None]] = []
    for contents in (b"\xff" * 5000, random.Random(1).randbytes(5000), b"hfs jrnl" + bytes(100)):
        log = JournalLog((Noted(0, story, contents), Noted(1, story, contents)))
        assert table(log) == {}
        log.put(1, 1, b"one")
        assert table(log) == {(1, 1): b"one"}


def test_what_lies_behind_the_last_record_is_never_taken_for_one() -> None:
    """A record that was torn holds, as its value, a whole record of its own; a shorter one is stored over its front."""
    story: list[tuple[int, int, bytes | None]] = []
    memory = Noted(0, story)
    segment = Segment(memory)
    segment.begin(1, complete=True)
    at = segment.append(b"first")
    frame = memory[at : segment.end]
    torn_at = segment.append(bytes(100 - 12) + frame)
    memory.data[torn_at] ^= 1
    again = Segment(memory)
    assert [payload for _, payload in again.records()] == [b"first"]
    again.append(b"x" * (100 - 12))
    assert again.end == torn_at + 100, "the frame follows"
    assert [payload for _, payload in Segment(memory).records()] == [b"first", b"x" * 88]


def test_an_empty_memfd_becomes_a_segment() -> None:
    fd = os.memfd_create("segment")
    try:
        segment = Segment(open_memory(fd))
        segment.begin(1, complete=True)
        places = [segment.append(bytes([n % 256]) * 1000) for n in range(1000)]
        again = Segment(open_memory(fd))
        assert [(at, payload[:1]) for at, payload in again.records()] == [
            (at, bytes([n % 256])) for n, at in enumerate(places)
        ]
        segment.clear()
        assert os.fstat(fd).st_size == HEADER_BYTES
    finally:
        os.close(fd)
