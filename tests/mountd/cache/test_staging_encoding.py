"""Encoded chunks: what comes back is what was put, or nothing; what they take is what is accounted; nobody else reads
them.

Without threads, in virtual time (tests/support/faults.py). Kills and faults at every operation:
tests/power/test_crash.py.
"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache.objects.codec import RAW, UNDECIDED, Shrinker, expand
from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.core.errors import ConfigError, StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.cache.admission import blocks_bytes
from hfs.policies.cache.encoding import EncodingChoice, pays
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SHRINKS,
    SIZE,
    check_contents,
    contents,
    disk_bytes,
    healthy_staging,
    object_path,
    overwrite,
    page_aligned,
    put,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import pattern

SEED = SHRINKS + 1


def chunks_of_a_kind() -> st.SearchStrategy[bytes]:
    """Noise, counts of any width, runs: of any length, aligned to nothing."""

    def made(seed: int, size: int, kind: str, skip: int) -> bytes:
        draw = np.random.default_rng(seed)
        if kind == "noise":
            return draw.bytes(size)
        if kind == "zeros":
            return bytes(size)
        return draw.poisson(3, size).astype(kind).tobytes()[skip : skip + size]

    kinds = st.sampled_from(["noise", "zeros", "u1", "<i2", "<i4", "<i8", "<f4", ">u2"])
    return st.builds(made, st.integers(0, 999), st.integers(1, 150_000), kinds, st.integers(0, 7))


# -- the encoding itself ----------------------------------------------------------------------------------------------


@given(
    data=chunks_of_a_kind() | st.binary(min_size=1, max_size=20_000), element=st.sampled_from([UNDECIDED, 1, 2, 4, 8])
)
def test_whatever_is_encoded_is_decoded_to_the_same(data: bytes, element: int) -> None:
    shrunk = Shrinker().shrink(memoryview(data), element)
    if shrunk is None:
        return
    assert pays(len(data), shrunk.stored_bytes)
    assert len(shrunk.data) == blocks_bytes(shrunk.stored_bytes)
    assert np.frombuffer(shrunk.data, np.uint8).ctypes.data % 4096 == 0
    assert not any(shrunk.data[shrunk.stored_bytes :])
    assert expand(bytearray(shrunk.data[: shrunk.stored_bytes]), len(data)) == data


@given(data=chunks_of_a_kind(), at=st.integers(0, 1 << 30), bit=st.integers(0, 7), cut=st.integers(1, 1 << 30))
def test_damage_is_found_before_the_decoder_sees_it(data: bytes, at: int, bit: int, cut: int) -> None:
    shrunk = Shrinker().shrink(memoryview(data), UNDECIDED)
    if shrunk is None:
        return
    stored = bytearray(shrunk.data[: shrunk.stored_bytes])
    flipped = bytearray(stored)
    flipped[at % len(stored)] ^= 1 << bit
    for broken in (flipped, stored[: -(cut % len(stored)) - 1], stored + b"\0", bytearray()):
        with pytest.raises(Damaged):
            expand(broken, len(data))
    for size in (len(data) - 1, len(data) + 1, 0):
        with pytest.raises(Damaged):
            expand(stored, size)


@pytest.mark.parametrize("kind", ["<i2", "<i4", "<i8", "u1"])
def test_the_size_of_an_element_is_found(kind: str) -> None:
    data = np.random.default_rng(1).poisson(200 if kind != "u1" else 2, 100_000).astype(kind).tobytes()
    shrunk = Shrinker().shrink(memoryview(data), UNDECIDED)
    assert shrunk is not None
    assert shrunk.element_bytes == np.dtype(kind).itemsize
    others = [Shrinker().shrink(memoryview(data), size) for size in (1, 2, 4, 8)]
    assert shrunk.stored_bytes <= 1.1 * min(other.stored_bytes for other in others if other is not None)


def test_what_does_not_shrink_is_left_alone() -> None:
    noise = memoryview(np.random.default_rng(1).bytes(100_000))
    assert Shrinker().shrink(noise, UNDECIDED) is None
    assert Shrinker().shrink(noise, 2) is None
    assert Shrinker().shrink(memoryview(bytes(100_000)), RAW) is None
    assert Shrinker().shrink(memoryview(bytes(4096)), UNDECIDED) is None  # a block it is


# -- put and read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8193, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE, 3 * CHUNK_BYTES, 1_000_000])
async def test_what_is_put_comes_back_and_takes_less(tmp_path: Path, size: int) -> None:
    async def everything_holds(staging: Cache, file: StagedFile) -> None:
        assert file.complete
        assert file.committed.full
        assert not file.plain
        assert os.path.getsize(object_path(staging, file)) == size
        statistics = staging.statistics()
        assert disk_bytes(str(tmp_path)) <= statistics.room_bytes == file.room_bytes
        assert file.room_bytes <= blocks_bytes(size) * 2 // 3 + file.overhead_bytes() + 4096
        assert statistics.bytes == size
        whole = [i for i in range(file.present.count) if file.chunks.stored_bytes(i)]
        assert statistics.shrunk_bytes == sum(file.chunk(index).size for index in whole)
        assert statistics.shrunk_stored_bytes == sum(map(file.chunks.stored_bytes, whole))
        for extent in (
            Extent(0, size),
            Extent(size // 2, size),
            Extent(1, 2),
            Extent(size - 1, size),
            Extent(size // 3, size // 3),
            Extent(max(0, CHUNK_BYTES - 5), min(size, CHUNK_BYTES + 5)),
        ):
            check_contents(SEED, extent.start, await staging.reader.read(file, extent))
        for index in range(file.present.count):
            check_contents(SEED, file.chunk(index).start, await staging.reader.read_chunk(file, index))

    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await stage(staging, SEED, size)
        await everything_holds(staging, file)
        assert not file.plain
        assert not staging.statistics().uncommitted_bytes
    for encoding in (False, True):  # it is read whatever is asked for now
        async with healthy_staging(tmp_path, encoding=encoding) as staging:
            file = await staging.files.get(version_of(SEED, size))
            await everything_holds(staging, file)
    assert await verify(str(tmp_path)) > 0


async def test_nobody_is_given_the_object_of_an_encoded_file(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await stage(staging, SEED)
        raw = await stage(staging, 5)
        assert raw.durable
        assert raw.plain
        assert not file.durable
        assert staging.publisher.publish_nowait(file, os.dup) is None
        with pytest.raises(StagingError, match="not staged as a whole"):
            await staging.publisher.publish(file, os.dup)
        await staging.reader.will_need([(file, Extent(0, SIZE)), (raw, Extent(0, SIZE))])


async def test_a_file_that_does_not_shrink_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    shrink = Shrinker.shrink

    def counted(self: Shrinker, data: memoryview, element_bytes: int) -> Any:
        tried.append(element_bytes)
        return shrink(self, data, element_bytes)

    monkeypatch.setattr(Shrinker, "shrink", counted)
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await staging.files.get(version_of(5, SIZE), b"f")
        put(staging, file, 0)
        await staging.committer.wait_committed()
        assert file.element_bytes == RAW
        shrinks = page_aligned(contents(SEED, 0, CHUNK_BYTES))  # of the same file, for once
        assert staging.writer.put_nowait(file, 1, shrinks)
        await staging.committer.wait_committed()
        assert file.plain
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await staging.files.get(version_of(5, SIZE), b"f")
        assert file.element_bytes == RAW
    assert tried == [UNDECIDED, RAW]


async def test_the_short_end_does_not_decide_about_its_file(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, encoding=True) as staging:
        size = CHUNK_BYTES + 20_000
        file = await staging.files.get(version_of(5, size), b"f")
        assert staging.writer.put_nowait(file, 1, page_aligned(bytes(20_000)))  # as the padding of an archive
        await staging.committer.wait_committed()
        put(staging, file, 0)
        await staging.committer.wait_committed()
        assert file.durable


async def test_chunks_of_both_kinds_in_one_file(tmp_path: Path) -> None:
    """The second chunk is noise."""

    def content(index: int) -> bytes:
        return pattern(7, 0, CHUNK_BYTES) if index == 1 else contents(SEED, index * CHUNK_BYTES, CHUNK_BYTES)

    version = version_of(SEED, 3 * CHUNK_BYTES)
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await staging.files.get(version, b"f")
        for index in range(3):
            assert staging.writer.put_nowait(file, index, page_aligned(content(index)))
            await staging.committer.wait_committed()
        assert [bool(file.chunks.stored_bytes(index)) for index in range(3)] == [True, False, True]
        assert not file.durable
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version)
        expected = b"".join(map(content, range(3)))
        assert await staging.reader.read(file, Extent(0, 3 * CHUNK_BYTES)) == expected
        assert staging.reader.read_nowait(file, Extent(CHUNK_BYTES, 2 * CHUNK_BYTES)) in (None, content(1))
        part = Extent(CHUNK_BYTES - 100, CHUNK_BYTES + 100)
        assert await staging.reader.read(file, part) == expected[part.start : part.end]
        assert [checked.broken async for checked in staging.checker.check()] == [()]
        # Once what is shrunk is gone, and comes back as it is, the kernel may have the file.
        staging.files.pin(file)
        for index in (0, 2):
            assert await staging.evictions.evict_chunk(file, index) == file.chunk_room_bytes(index) < CHUNK_BYTES
        assert disk_bytes(str(tmp_path)) <= staging.statistics().room_bytes == file.room_bytes
        assert staging.statistics().shrunk_bytes == 0
        assert not file.durable
        for index in (0, 2):
            assert staging.writer.put_nowait(file, index, page_aligned(content(index)))
        await staging.committer.wait_committed()
        assert file.durable
        assert Path(object_path(staging, file)).read_bytes() == expected
        assert file.room_bytes == 3 * CHUNK_BYTES + file.overhead_bytes() == staging.statistics().room_bytes
        staging.files.unpin(file)


async def test_a_chunk_is_decoded_once_for_many_reads(tmp_path: Path) -> None:
    async def read(staging: Cache, file: StagedFile, extent: Extent) -> None:
        check_contents(SEED, extent.start, await staging.reader.read(file, extent))

    metrics = Metrics()
    async with healthy_staging(tmp_path, encoding=True, metrics=metrics) as staging:
        file = await stage(staging, SEED, 3 * CHUNK_BYTES)
        assert staging.reader.read_nowait(file, Extent(10, 20)) is None
        async with trio.open_nursery() as nursery:
            for at in range(0, 50_000, 5000):
                nursery.start_soon(read, staging, file, Extent(at, at + 4000))
        assert metrics["staged_decoded_chunks"] == 1
        assert staging.reader.read_nowait(file, Extent(10, 20)) == contents(SEED, 10, 10)
        assert staging.reader.read_nowait(file, Extent(CHUNK_BYTES - 10, CHUNK_BYTES + 10)) is None
        for at in range(0, 2 * CHUNK_BYTES - 4096, 4096):
            await read(staging, file, Extent(at, at + 4096))
        assert metrics["staged_decoded_chunks"] == 2
        assert metrics["staged_decoded_bytes"] == 2 * CHUNK_BYTES


# -- faults -----------------------------------------------------------------------------------------------------------


def flip(path: str, at: int) -> None:
    with open(path, "rb") as file:
        file.seek(at)
        (byte,) = file.read(1)
    overwrite(path, at, bytes([byte ^ 16]))


def cut(path: str, at: int) -> None:
    os.truncate(path, at)


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("at", [0, 5, 9, 15, 20, 3000, -1])
async def test_damage_anywhere_is_never_a_byte_of_an_answer(
    tmp_path: Path, logs: Logs, harm: Callable[[str, int], None], at: int
) -> None:
    logs.expect("cannot be read")
    metrics = Metrics()
    async with healthy_staging(tmp_path, encoding=True, metrics=metrics) as staging:
        file = await stage(staging, SEED, 2 * CHUNK_BYTES)
        harm(object_path(staging, file), CHUNK_BYTES + (at if at >= 0 else file.chunks.stored_bytes(1) - 1))
        check_contents(SEED, 0, await staging.reader.read(file, Extent(0, CHUNK_BYTES)))
        with pytest.raises(StagingError):  # these bytes may well be whole; nobody can tell
            await staging.reader.read(file, Extent(2 * CHUNK_BYTES - 10, 2 * CHUNK_BYTES))
        assert 1 not in file.present
        assert metrics["staged_checksum_failures"] == 1
        await staging.reclaimer.wait_idle()
        assert staging.statistics().room_bytes == file.room_bytes
        assert put(staging, file, 1)
        await staging.committer.wait_committed()
        check_contents(SEED, 0, await staging.reader.read(file, Extent(0, 2 * CHUNK_BYTES)))
    await verify(str(tmp_path))


async def test_a_wrong_decoder_is_found_by_the_checksum_of_the_chunk(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.expect("wrong checksum")
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await stage(staging, SEED)
        monkeypatch.setattr("hfs.mountd.cache.objects.reads.expand", lambda _stored, size: bytearray(size))
        with pytest.raises(StagingError):
            await staging.reader.read(file, Extent(0, 10))


async def test_what_the_kernel_reads_by_itself_is_never_encoded(tmp_path: Path, logs: Logs) -> None:
    """A chunk of a file that is passed through is found damaged: the right bytes come over it, as they are."""
    logs.expect("cannot be read: .*wrong checksum")
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, SEED, 2 * CHUNK_BYTES)
        assert file.durable
        staging.files.pin(file)
        file.passed = 1
        staging.shrinking.choose(EncodingChoice(True, "for a test"), Shrinker())
        overwrite(object_path(staging, file), CHUNK_BYTES, bytes(100))
        with pytest.raises(StagingError):
            await staging.reader.read_chunk(file, 1)
        await staging.reclaimer.wait_idle()
        assert put(staging, file, 1)
        await staging.committer.wait_committed()
        assert file.durable
        assert Path(object_path(staging, file)).read_bytes() == contents(SEED, 0, 2 * CHUNK_BYTES)
        assert staging.statistics().room_bytes == file.room_bytes == 2 * CHUNK_BYTES + file.overhead_bytes()
        other = await staging.files.get(version_of(SEED + 1, CHUNK_BYTES), b"other")
        other.passed = 1  # whatever the reason
        assert put(staging, other, 0)
        await staging.committer.wait_committed()
        assert other.durable
        other.passed = file.passed = 0
        staging.files.unpin(file)
    await verify(str(tmp_path))


async def test_what_could_not_be_given_back_is_overwritten_as_it_is(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.expect("cannot be read")
    async with healthy_staging(tmp_path, encoding=True) as staging:
        file = await stage(staging, SEED, 2 * CHUNK_BYTES)
        encoded_room = file.chunk_room_bytes(1)
        flip(object_path(staging, file), CHUNK_BYTES + 100)

        def punch(*_: object) -> None:
            raise OSError(errno.EIO, "no")

        with monkeypatch.context() as patched:
            patched.setattr(staging.context.disk.io, "punch", punch)
            with pytest.raises(StagingError):
                await staging.reader.read_chunk(file, 1)
            await staging.reclaimer.wait_idle()
        assert file.stray == {1: encoded_room}
        assert disk_bytes(str(tmp_path)) <= staging.statistics().room_bytes == file.room_bytes
        assert put(staging, file, 1)
        await staging.committer.wait_committed()
        assert file.chunks.stored_bytes(0)
        assert not file.chunks.stored_bytes(1)
        assert disk_bytes(str(tmp_path)) <= staging.statistics().room_bytes == file.room_bytes
        assert file.room_bytes == file.chunk_room_bytes(0) + CHUNK_BYTES + file.overhead_bytes()
        check_contents(SEED, 0, await staging.reader.read(file, Extent(0, 2 * CHUNK_BYTES)))
    await verify(str(tmp_path))


# -- the library that decodes them is missing, too old, or broken -----------------------------------------------------


def test_without_the_library_who_asks_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Shrinker().shrink(memoryview(bytes(100_000)), 1)
    assert encoded is not None
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    with pytest.raises(ConfigError, match=r"pip install 'numcodecs>=0\.16\.1'"):
        Shrinker()
    with pytest.raises(OSError, match="pip install") as raised:
        expand(bytearray(encoded.data[: encoded.stored_bytes]), 100_000)
    assert raised.value.errno == errno.ENOSYS


def test_a_library_that_is_too_old_is_refused_before_anything_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    def compress(source: memoryview, codec: bytes, level: int, shuffle: int = 1) -> bytes:
        raise AssertionError("not called: it knows no size of an element")

    monkeypatch.setattr("numcodecs.blosc.compress", compress)
    with pytest.raises(ConfigError, match=r"needs numcodecs >= 0\.16 .*typesize"):
        Shrinker()


def test_a_broken_library_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built for another NumPy it raises ValueError, which no reader's thread may bring back."""
    encoded = Shrinker().shrink(memoryview(bytes(100_000)), 1)
    assert encoded is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "numcodecs"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "numcodecs.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"numpy\.dtype size changed"):
        Shrinker()
    with pytest.raises(OSError, match=r"numpy\.dtype size changed") as raised:
        expand(bytearray(encoded.data[: encoded.stored_bytes]), 100_000)
    assert raised.value.errno == errno.ENOSYS


async def test_without_the_library_what_is_encoded_is_fetched_again(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healthy_staging(tmp_path, encoding=True) as staging:
        await stage(staging, SEED)
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    logs.expect("needs numcodecs: pip install")
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(SEED, SIZE))
        for index in range(4):
            if file.chunks.stored_bytes(index):
                with pytest.raises(StagingError):
                    await staging.reader.read(file, Extent(index * CHUNK_BYTES, index * CHUNK_BYTES + 1))
        await staging.reclaimer.wait_idle()
        assert metrics["staged_checksum_failures"] == 0
        for index in range(4):
            assert put(staging, file, index)
        await staging.committer.wait_committed()
        assert file.durable
    await verify(str(tmp_path))


async def test_check_without_the_library_drops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with healthy_staging(tmp_path, encoding=True) as staging:
        await stage(staging, SEED)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numcodecs", None)
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            (checked,) = [checked async for checked in staging.checker.check()]
            assert checked.broken == ()
            assert "not checked: it is encoded and needs numcodecs: pip install" in str(checked.fault)
            assert metrics["staged_checksum_failures"] == 0
    assert await verify(str(tmp_path)) == 4
