"""A time-to-live that is longer than nothing: what has changed at the source is seen once it is over, in every way."""

import os
import time
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import explain, pattern

TTL_S = 1.0
SLOWFS_TTL_S = 1.0
"""How long slowfs's own client believes what it was told (its README)."""

CHUNK = 64 << 10
SMALL, LARGE = 3_000, 5 * CHUNK + 77


def write(path: Path, seed: int, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pattern(seed, 0, size))


def same(path: Path, seed: int, size: int) -> None:
    data = path.read_bytes()
    assert data == pattern(seed, 0, size), explain(seed, 0, data)


def wait_until(deadline_s: float) -> None:
    """Until that time has come: the deadline is what is tested, there is no event that tells of it."""
    while (left_s := deadline_s - time.monotonic()) > 0:
        time.sleep(left_s)


@pytest.mark.parametrize("kind", ["plain", "slowfs"])
def test_a_change_is_seen_when_the_time_to_live_is_over(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, kind: str
) -> None:
    """A change at the source is seen at the latest when the time-to-live is over: other bytes, of the same size too;
    another file, directory or link under the name; a name that has come or gone, by look-up and in the listing. What is
    open keeps its version."""
    backing = tmp_path / "backing"
    before_files = {"small": SMALL, "large": LARGE, "replaced": SMALL, "gone": SMALL, "d/f": SMALL}
    after_files = {"small": SMALL, "large": LARGE + 1, "replaced": SMALL, "come": SMALL, "d/f": SMALL}
    for name, size in before_files.items():
        write(backing / name, 1, size)
    (backing / "link").symlink_to("small")
    source, source_ttl_s = (backing, 0.0) if kind == "plain" else (slow_source(backing).path, SLOWFS_TTL_S)
    hfs = hfs_mount(source, "--ttl", str(TTL_S), chunk_bytes=CHUNK)
    assert hfs.cache_command("warm", hfs.path).returncode == 0

    def look() -> None:
        for name, size in before_files.items():
            same(hfs.path / name, 1, size)
        assert os.readlink(hfs.path / "link") == "small"
        assert not (hfs.path / "come").exists()
        assert set(os.listdir(hfs.path)) == {"small", "large", "replaced", "gone", "d", "link"}

    look()
    with (hfs.path / "large").open("rb", buffering=0) as early:
        assert os.pread(early.fileno(), CHUNK, 0) == pattern(1, 0, CHUNK)
        look()  # all of it is known now, and remembered by the kernel too
        before = (backing / "small").stat()
        write(backing / "small", 2, SMALL)
        os.utime(backing / "small", ns=(before.st_atime_ns, before.st_mtime_ns))  # only ctime tells
        write(backing / "large", 2, LARGE + 1)
        write(backing / "new", 2, SMALL)
        (backing / "new").rename(backing / "replaced")
        (backing / "gone").unlink()
        write(backing / "come", 2, SMALL)
        (backing / "d").rename(backing / "old")
        write(backing / "d" / "f", 2, SMALL)
        (backing / "link").unlink()
        (backing / "link").symlink_to("large")
        wait_until(time.monotonic() + TTL_S + source_ttl_s)

        assert (hfs.path / "large").stat().st_size == LARGE + 1
        assert set(os.listdir(hfs.path)) == {"small", "large", "replaced", "come", "d", "old", "link"}
        for name, size in after_files.items():
            same(hfs.path / name, 2, size)
        same(hfs.path / "old" / "f", 1, SMALL)
        assert os.readlink(hfs.path / "link") == "large"
        with pytest.raises(FileNotFoundError):
            (hfs.path / "gone").stat()
        assert os.pread(early.fileno(), LARGE, 0) == pattern(1, 0, LARGE)
