"""`--stage-encoding` on real mounts: a cache that is too small for raw arrays keeps them encoded, and nobody notices.

Readers get the source's bytes in every epoch, after a kill and a remount, with the option turned off again; files that
shrink are not passed through, the others are; `hfs status` says what was decided.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fuse.harness import COMMAND_LIMIT_S, Hfs, HfsMount, drop_pages, here, hfs_command, run
from tests.fuse.modes import needs_passthrough
from tests.support.pattern import write_pattern

FILES = 6
AUTO = ("--stage-encoding", "auto")
LITTLE_MEMORY = ("-o", "buffer=512K")
"""What is not staged is not in memory either when it is read again."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """int16 counts in .npy files and in one contiguous data set: 2.4 MB, a quarter of it if encoded."""
    h5py = pytest.importorskip("h5py")
    folder = tmp_path / "source"
    (folder / "train").mkdir(parents=True)
    draw = np.random.default_rng(5)
    for number in range(FILES):
        np.save(folder / "train" / f"{number}.npy", draw.poisson(2, 150_000 + number).astype(np.int16))
    with h5py.File(folder / "set.h5", "w") as file:
        file["volumes"] = draw.poisson(2, (6, 50_000)).astype(np.int16)
    return folder


def small_cache(source: Path) -> str:
    """Less than half of the data."""
    return str(data_bytes(source) * 45 // 100)


def data_bytes(source: Path) -> int:
    return sum(path.stat().st_size for path in files(source))


def files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file())


def epoch(hfs: Hfs) -> int:
    """Read and compare all, whole files and pieces, of which nothing is in the page cache. Bytes from the source."""
    before = hfs.status()["source"]["bytes"]
    for path in files(hfs.source):
        shown, expected = hfs.path / path.relative_to(hfs.source), path.read_bytes()
        drop_pages(shown)
        assert shown.read_bytes() == expected, path
        drop_pages(shown)
        with shown.open("rb", buffering=0) as file:
            for at in (len(expected) - 5000, 0, len(expected) // 3 * 2, 65_536 - 7):
                assert os.pread(file.fileno(), 4999, at) == expected[at : at + 4999], (path, at)
    return int(hfs.status()["source"]["bytes"]) - before


def settle(hfs: Hfs) -> None:
    """What is queued for the cache is on the disk, and durable."""
    until = time.monotonic() + COMMAND_LIMIT_S
    while any(hfs.status()["staged"][figure] for figure in ("queued_bytes", "uncommitted_bytes")):
        assert time.monotonic() < until
        time.sleep(0.1)


def fill(hfs: Hfs) -> None:
    """Epochs until the cache has all that it takes: what finds no place in the queue of its disk comes in the next.

    But for two chunks that memory may hold from then on.
    """
    dropped = -1
    for _ in range(12):
        epoch(hfs)
        settle(hfs)
        if hfs.status()["faults"]["staging_dropped"] == dropped:
            return
        dropped = hfs.status()["faults"]["staging_dropped"]
    raise AssertionError(f"{dropped} chunks found no place")


@needs_passthrough
def test_a_small_cache_holds_all_of_what_shrinks(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """Without encoding a third of it comes from the source again: see the next test."""
    write_pattern(source / "noise", 3, 200_000)
    hfs = hfs_mount(source, *AUTO, *LITTLE_MEMORY, cache_size=small_cache(source))
    decided = hfs.status()["stage_encoding"]
    assert (decided["wanted"], decided["on"]) == ("auto", True)
    assert "does not fit the cache" in decided["reason"]
    assert hfs.cache_command("warm", hfs.path / "noise").returncode == 0
    fill(hfs)
    opens = hfs.status()["opens"]["passed"]
    assert epoch(hfs) < data_bytes(source) // 12
    settle(hfs)
    staged = hfs.status()["staged"]
    assert staged["bytes"] > 0.9 * data_bytes(source)
    assert staged["encoded_bytes"] > 0.7 * data_bytes(source)
    assert 2.5 * staged["encoded_stored_bytes"] < staged["encoded_bytes"]
    assert staged["room_bytes"] <= staged["capacity_bytes"] < data_bytes(source) // 2
    assert hfs.status()["opens"]["passed"] > opens  # of the noise
    assert hfs.status()["io_mode"]["faster_if_reopened"] == 0
    opens = hfs.status()["opens"]["passed"]
    for path in files(source / "train"):
        assert (hfs.path / "train" / path.name).read_bytes() == path.read_bytes()
    assert hfs.status()["opens"]["passed"] == opens
    shown = run(hfs_command(), "status", "--all", hfs.path).stdout
    assert "does not fit the cache" in shown
    assert "encoded stored bytes" in shown.replace("_", " ")


def test_without_it_a_small_cache_holds_less_than_half(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *LITTLE_MEMORY, cache_size=small_cache(source))
    assert hfs.status()["stage_encoding"] == {"wanted": "none", "on": False, "reason": "--stage-encoding none"}
    epoch(hfs)
    settle(hfs)
    assert epoch(hfs) > data_bytes(source) // 3


def test_a_kill_a_remount_and_the_option_turned_off(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *AUTO, *LITTLE_MEMORY, cache_size=small_cache(source))
    fill(hfs)
    kept = hfs.status()["staged"]["encoded_bytes"]
    hfs.kill()
    hfs.mount()
    assert hfs.status()["staged"]["encoded_bytes"] == kept > 0
    assert epoch(hfs) < data_bytes(source) // 4
    hfs.umount()
    checked = here("cache", "check", "--cache", hfs.cache, "--json")
    assert checked.returncode == 0, checked.stderr
    hfs.options = tuple(option for option in hfs.options if option not in AUTO)
    hfs.mount()
    assert hfs.status()["stage_encoding"]["on"] is False
    assert epoch(hfs) < data_bytes(source) // 4
    assert hfs.cache_command("check", "--against-source", hfs.path).returncode == 0


def test_damage_on_the_disk_is_found_and_fetched_again(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *AUTO, *LITTLE_MEMORY, cache_size=small_cache(source))
    fill(hfs)
    hfs.umount()
    harmed = 0
    for path in (hfs.own_cache / "objects").rglob("*"):
        if path.is_file() and path.stat().st_blocks * 512 < path.stat().st_size * 2 // 3:
            with path.open("r+b") as file:
                if os.lseek(file.fileno(), 0, os.SEEK_DATA) > 100:
                    continue  # its first chunk is not there
                file.seek(100)
                byte = file.read(1)
                file.seek(100)
                file.write(bytes([byte[0] ^ 4]))
            harmed += 1
    assert harmed > FILES // 2
    hfs.expect_warning("cannot be read")
    hfs.mount()
    epoch(hfs)  # compares
    assert hfs.status()["faults"]["staged_checksum_failures"] >= harmed
    settle(hfs)


def test_where_the_data_fits_nothing_is_encoded(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *AUTO)
    decided = hfs.status()["stage_encoding"]
    assert not decided["on"]
    assert "fits the cache" in decided["reason"]
    epoch(hfs)
    settle(hfs)
    assert hfs.status()["staged"]["encoded_bytes"] == 0


def test_without_the_library_the_mount_says_what_to_install(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "numcodecs"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('it is not there')")
    path = os.pathsep.join([str(hidden.parent), *(part for part in sys.path if part)])
    with pytest.raises(AssertionError, match=r"pip install 'numcodecs>=0\.16\.1'"):
        hfs_mount(source, *AUTO, env={"PYTHONPATH": path})
    hfs = hfs_mount(source, env={"PYTHONPATH": path})
    epoch(hfs)


def test_small_files_that_nobody_has_read_are_kept_encoded(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """The data plane reads them, and gives their bytes to who encodes them."""
    pytest.importorskip("numcodecs")
    folder = tmp_path / "small"
    folder.mkdir()
    draw = np.random.default_rng(6)
    for number in range(24):
        np.save(folder / f"{number}.npy", draw.poisson(2, 10_000 + number).astype(np.int16))
    hfs = hfs_mount(folder, *AUTO, "-o", "siblings=0", cache_size=str(data_bytes(folder) * 45 // 100))

    def read_all() -> None:
        for path in files(folder):
            drop_pages(hfs.path / path.name)
            assert (hfs.path / path.name).read_bytes() == path.read_bytes()

    read_all()
    read_all()
    limit = time.monotonic() + COMMAND_LIMIT_S
    while hfs.status()["staged"]["files"] < 8:  # all that there is room for, in whole blocks
        assert time.monotonic() < limit, hfs.status()["staged"]
        read_all()  # until it is encoded a file takes more, and others that come meanwhile are not staged
