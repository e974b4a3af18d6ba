"""Encoded chunks where the library that decodes them is missing, too old, or broken.

Without threads, in virtual time (tests/support/faults.py).
"""

import errno
import sys
from pathlib import Path

import pytest

from hfs.mountd.cache.objects.codec import Shrinker, expand
from hfs.mountd.core.errors import ConfigError, StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import CHUNK_BYTES, SHRINKS, SIZE, healthy_staging, put, stage, verify, version_of

SEED = SHRINKS + 1


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
