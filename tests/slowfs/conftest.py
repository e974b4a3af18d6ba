"""Fixtures of the tests of slowfs: built, mounted, and read by processes that may hang."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slowfs.mounted import PATIENCE_S, SLOWFS, Mount


@pytest.fixture(scope="module")
def built() -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler (cc)")
    if subprocess.run(["pkg-config", "--exists", "fuse3 >= 3.14"], check=False).returncode:
        pytest.skip("no libfuse 3.14 with headers (Debian package libfuse3-dev)")
    subprocess.run([SLOWFS / "build"], check=True)


@pytest.fixture
def mount(built: None, tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Mounts tmp_path/backing, options as given; all mounts are gone when the test is."""
    mounts: list[Mount] = []
    backing = tmp_path / "backing"
    backing.mkdir()

    def make(*options: str, **more: int) -> Mount:
        mountpoint = tmp_path / f"mount{len(mounts)}"
        mountpoint.mkdir()
        mounts.append(Mount(backing, mountpoint, *options, **more))
        return mounts[-1]

    yield make
    for each in reversed(mounts):
        each.end()


@pytest.fixture
def readers() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts a process that reads a file past the page cache and prints it; none is left behind."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = ["dd", f"if={path}", "iflag=direct", "bs=64K", "status=none"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
