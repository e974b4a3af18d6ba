"""Small files that the data plane fetches, without a mount: what is left to Python."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from hfs.mountd.kernel import (
    DataPlane,
    Fetched,
    FetchKind,
    KnownObject,
    SlotTable,
    SmallFetches,
    let_go_of_staged_bytes,
)
from hfs.mountd.kernel.plane import News
from hfs.mountd.native.extension import EXTENSION
from tests.support.plane_kernel import Kernel, serving

FIRST = 1 << 62
DIRECTORY = 3
LAST = 30
"""Number of an object, and more than any."""
LONG_AGO = (FIRST, FIRST)
"""All ctimes are."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[DataPlane, SmallFetches, Kernel]]:
    """A data plane that fetches files of `tmp_path / "source"`, and has objects in `tmp_path / "cache"`."""
    for name in ("source", "cache"):
        (tmp_path / name).mkdir()
    source_fd, cache_fd = (os.open(tmp_path / name, os.O_RDONLY) for name in ("source", "cache"))
    fetches = SmallFetches()
    with serving() as (plane, kernel):
        slots = SlotTable(plane)
        slots.begin(FIRST)
        fetches.start(-1, 2, ahead_threads=2, ahead_bytes=1)  # no bytes stay in memory
        fetches.store_in(cache_fd, 0)
        fetches.grant(range(10, LAST))
        fetches.grant_room(1 << 20)
        assert fetches.delegate(
            DIRECTORY,
            source_fd,
            os.fstat(source_fd).st_dev,
            generation=1,
            largest_bytes=1 << 16,
            settled_ns=LONG_AGO,
            until_ns=time.monotonic_ns() + 10**12,
            valid_s=1000.0,
            careful=False,
            prefix=b"",
        )
        yield plane, fetches, kernel
        slots.recall_directory(DIRECTORY)
        fetches.stop(10)
        for number in range(LAST):
            plane.take_object(number)
    for fd in (source_fd, cache_fd):
        os.close(fd)


def fetched(fetches: SmallFetches, *names: bytes) -> dict[bytes, Fetched]:
    """What has become of these, once it is known of all."""
    assert not any(fetches.ahead([(DIRECTORY, name) for name in names]))
    found: dict[bytes, Fetched] = {}
    while len(found) < len(names):
        assert select.select([EXTENSION.plane_news_fd(News.FETCHED)], [], [], 10)[0]
        EXTENSION.plane_news_read(News.FETCHED)
        found.update((one.name, one) for one in fetches.take_fetched())
    return found


def known(one: Fetched, file: Path) -> KnownObject:
    """What is told of it when it is in the index."""
    its = file.stat()
    return KnownObject(
        one.number, one.inode, one.checksum, its.st_ino, its.st_size, one.ctime_ns, its.st_mtime_ns, its.st_ctime_ns
    )


def rewritten(number: int, folder: Path, name: str) -> KnownObject:
    """A file that was staged as this object, and has other bytes since, with the same size and times."""
    before, now = name.encode() * 100, name.upper().encode() * 100
    staged = folder / "cache" / f"{number:02x}" / str(number)
    staged.parent.mkdir()
    staged.write_bytes(before)
    (folder / "source" / name).write_bytes(now)
    its, the = staged.stat(), (folder / "source" / name).stat()
    checksum = xxhash.xxh3_64_intdigest(before)
    return KnownObject(
        number, its.st_ino, checksum, the.st_ino, len(now), its.st_ctime_ns, the.st_mtime_ns, the.st_ctime_ns
    )


def test_what_was_found_rewritten_is_left_to_python_and_its_siblings_are_not(
    served: tuple[DataPlane, SmallFetches, Kernel], tmp_path: Path
) -> None:
    """A version does not say which of two states it is: of such a file nothing is answered by it. Of its siblings,
    staged or not, everything is as before."""
    plane, fetches, kernel = served
    objects = [rewritten(1, tmp_path, "doubted"), rewritten(2, tmp_path, "staged")]
    fetches.know(objects)
    (tmp_path / "source" / "new").write_bytes(b"new" * 100)
    plane.distrust(objects[0].file_inode)
    os.open(tmp_path / "source" / "doubted", os.O_PATH)  # never closed: no file of a later test gets its number
    outcomes = fetched(fetches, b"doubted", b"staged", b"new")
    assert {name: (one.kind, one.number) for name, one in outcomes.items()} == {
        b"doubted": (FetchKind.NOTHING, 0),
        b"staged": (FetchKind.HERE, 2),
        b"new": (FetchKind.STORED, 10),
    }
    assert kernel.look_up(DIRECTORY, b"doubted") is None
    for name, size in ((b"staged", 600), (b"new", 300)):
        told = kernel.look_up(DIRECTORY, name)
        assert told is not None
        assert told[2] == size


def test_what_was_fetched_a_moment_ago_is_opened_without_python_and_passed_through_later(
    served: tuple[DataPlane, SmallFetches, Kernel], tmp_path: Path
) -> None:
    """Where staged files are for the kernel to read by itself: an open that passes one through is Python's, and costs
    several times what the bytes cost that were fetched because somebody is about to read them."""
    _, fetches, kernel = served
    fetches.set_terms(pushes=False, passes=True, stores=True)
    try:
        names = [b"soon", b"late"]
        for name in names:
            (tmp_path / "source" / os.fsdecode(name)).write_bytes(name * 100)
        outcomes = fetched(fetches, *names)
        assert {one.kind for one in outcomes.values()} == {FetchKind.STORED}
        fetches.know(known(one, tmp_path / "source" / os.fsdecode(name)) for name, one in outcomes.items())
        nodes = [found[0] for name in names if (found := kernel.look_up(DIRECTORY, name)) is not None]
        answer = kernel.open(nodes[0])
        assert answer is not None
        assert kernel.release(nodes[0], answer[0])
        assert kernel.open(nodes[0]) is None, "the second time"
        let_go_of_staged_bytes()  # as at the end of a warm
        assert kernel.open(nodes[1]) is None
    finally:
        fetches.set_terms(pushes=True, passes=False, stores=True)
