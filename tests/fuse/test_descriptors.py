"""Few descriptors: more directories than may be open at a time are read, by many at once, and the mount answers."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfs.client.client import Client
from tests.fuse.harness import HfsMount, must
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import check, write_pattern

DIRECTORIES = 400
LARGE = 8
LARGE_BYTES = 300_000
READERS = 24
FEW = ("prlimit", "--nofile=256:256")


def tree(source: Path) -> None:
    for number in range(DIRECTORIES):
        (source / f"{number:03}").mkdir(parents=True)
        write_pattern(source / f"{number:03}" / "file", 100 + number, 5000 + number)
    for number in range(LARGE):
        write_pattern(source / f"large-{number}", 10 + number, LARGE_BYTES)


@pytest.mark.parametrize("kind", ["plain", "slowfs"])
def test_all_is_read_with_few_descriptors(
    tmp_path: Path, hfs_mount: HfsMount, slow_source: SlowSource, kind: str
) -> None:
    """`ulimit -Hn 256` and 400 directories: nothing fails, everything is right, and status answers."""
    tree(tmp_path / "backing")
    source = tmp_path / "backing" if kind == "plain" else slow_source(tmp_path / "backing").path
    hfs = hfs_mount(source, prefix=FEW)
    hfs.expect_warning("this process may have 256 files open")
    client = Client(str(hfs.socket))

    def read(number: int) -> None:
        if number < DIRECTORIES:
            assert os.listdir(hfs.path / f"{number:03}") == ["file"]
            check(100 + number, 0, (hfs.path / f"{number:03}" / "file").read_bytes())
        else:
            check(10 + number % LARGE, 0, (hfs.path / f"large-{number % LARGE}").read_bytes())
        if number % 50 == 0:
            assert client.status()["pid"] == hfs.pid

    with ThreadPoolExecutor(READERS) as readers:
        for _ in range(2 if kind == "plain" else 1):
            for done in [readers.submit(read, number) for number in range(DIRECTORIES + LARGE)]:
                done.result()
    found = client.status()
    assert found["descriptors"]["limit"] == 256
    assert len(os.listdir(f"/proc/{hfs.pid}/fd")) < 256
    assert found["faults"]["staging_errors"] == found["source"]["errors"] == 0
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    assert client.status()["staged"]["files"] == DIRECTORIES + LARGE


def test_a_daemon_whose_descriptors_are_all_in_use_goes_on(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """The limit is lowered below what is open already: caches are dropped until there is room again."""
    tree(tmp_path / "source")
    hfs = hfs_mount(tmp_path / "source")
    client = Client(str(hfs.socket))
    for number in range(DIRECTORIES):
        check(100 + number, 0, (hfs.path / f"{number:03}" / "file").read_bytes())
    held = len(os.listdir(f"/proc/{hfs.pid}/fd"))
    must("prlimit", f"--nofile={held}:{held}", "--pid", str(hfs.pid))
    for number in range(LARGE):
        check(10 + number, 0, (hfs.path / f"large-{number}").read_bytes())
    assert client.status()["descriptors"]["refused"] > 0
    assert client.status()["faults"]["staging_errors"] == 0
