"""The pace of staging: a drive in virtual time that carries one request after another, and readers that come to it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hfs.mountd.cache.objects.io import ObjectIO, WritePace
from hfs.policies.prefetch.yielding import FLOOR, rest_s

CHUNK_BYTES = 8 << 20
RATE_BPS = 100e6
LOOKS = 2_000


class Drive(ObjectIO):
    """Its clock is that of all. `busy`: when it was writing."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy: list[tuple[float, float]] = []
        self.written: dict[int, bytes] = {}
        self.after: Callable[[], object] = lambda: None

    def write(self, _fd: int, parts: Sequence[Any], offset: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        self.written[offset] = data
        begin_s, self.now_s = self.now_s, self.now_s + len(data) / RATE_BPS
        self.busy.append((begin_s, self.now_s))
        self.after()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def content(self, offset: int) -> bytes:
        """What was written from there on, without a gap."""
        found = bytearray()
        while (piece := self.written.get(offset + len(found))) is not None:
            found += piece
        return bytes(found)

    def mean_wait_s(self) -> float:
        """Of readers that come all the time."""
        waits_s = 0.0
        for number in range(LOOKS):
            at_s = self.now_s * number / LOOKS
            waits_s += sum(end_s - at_s for begin_s, end_s in self.busy if begin_s <= at_s < end_s)
        return waits_s / LOOKS


def pace_of(drive: Drive, *, readers_wait: bool = False) -> WritePace:
    return WritePace(lambda: readers_wait, lambda: drive.now_s, drive.sleep)


CONTENT = [memoryview(bytes(range(256)) * (CHUNK_BYTES // 256)), memoryview(b"the last block".ljust(4096))]


def write(pace: WritePace, drive: Drive, *, rests: bool = True) -> float:
    """Seconds that a chunk takes, all of which is there then, the end in another part."""
    began_s = drive.now_s
    pace.write(drive, 3, CONTENT, 4096, rests=rests)
    assert drive.content(4096) == b"".join(map(bytes, CONTENT))
    return drive.now_s - began_s


def test_nobody_waits_and_a_chunk_is_written_at_once() -> None:
    drive = Drive()
    write(pace_of(drive), drive)
    assert len(drive.busy) == 1


def test_our_own_reader_waits_for_a_piece_and_not_for_a_chunk_and_the_write_loses_nothing() -> None:
    free, pieces = Drive(), Drive()
    whole_s = write(pace_of(free), free)
    assert write(pace_of(pieces, readers_wait=True), pieces) == pytest.approx(whole_s)
    assert pieces.mean_wait_s() < free.mean_wait_s() / 15


def test_readers_of_others_hardly_wait_at_the_floor_and_the_write_comes_to_its_end() -> None:
    free, paced = Drive(), Drive()
    whole_s = write(pace_of(free), free)
    pace = pace_of(paced)
    pace.share = FLOOR
    assert write(pace, paced) == pytest.approx(whole_s / FLOOR, rel=0.02)
    assert paced.mean_wait_s() < free.mean_wait_s() / 200


@pytest.mark.parametrize("share", [FLOOR, 0.25, 0.5, 15 / 16])
def test_the_drive_is_busy_for_the_share_of_the_time(share: float) -> None:
    drive = Drive()
    pace = pace_of(drive)
    pace.share = share
    spent_s = write(pace, drive)
    assert sum(end_s - begin_s for begin_s, end_s in drive.busy) / spent_s == pytest.approx(share, rel=0.02)


def test_what_others_say_no_more_is_heeded_no_more_in_the_midst_of_a_chunk() -> None:
    drive = Drive()
    pace = pace_of(drive)
    pace.share = FLOOR

    def silent() -> None:
        pace.share = 1.0

    drive.after = silent
    assert write(pace, drive) == pytest.approx(sum(end_s - begin_s for begin_s, end_s in drive.busy))


def test_where_chunks_of_readers_would_be_dropped_nothing_rests() -> None:
    drive = Drive()
    pace = pace_of(drive)
    pace.share = FLOOR
    spent_s = write(pace, drive, rests=False)
    assert spent_s == pytest.approx(sum(end_s - begin_s for begin_s, end_s in drive.busy))


def test_a_rest_is_bounded() -> None:
    assert rest_s(0.01, 0.5) == pytest.approx(0.01)
    assert rest_s(1e9, FLOOR) == rest_s(0.02, FLOOR) == 0.25
    assert rest_s(1.0, 1.0) == rest_s(1.0, 2.0) == rest_s(-1.0, FLOOR) == 0.0
