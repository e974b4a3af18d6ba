"""What `hfs status` says that was read, beside what readers have counted, in each I/O mode."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import Hfs, HfsMount, drop_pages, environment, run
from tests.support.pattern import pattern

COUNT, SIZE = 60, 70_000
ROUNDS = 4


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir(mode=0o755)
    for number in range(COUNT):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, SIZE + number))
    return folder


def read_all(path: Path) -> int:
    """Bytes of all files, read whole."""
    total = 0
    for name in sorted(os.listdir(path)):
        with open(path / name, "rb", buffering=0) as file:
            while part := file.read(1 << 20):
                total += len(part)
    return total


def traffic(hfs: Hfs) -> dict[str, Any]:
    found: dict[str, Any] = hfs.status()["traffic"]
    return found


@pytest.mark.in_modes
def test_small_files_that_are_read_whole(tree: Path, hfs_mount: HfsMount, io_mode: object) -> None:
    hfs = hfs_mount(tree)
    counted = sum(read_all(hfs.path) for _ in range(ROUNDS))
    drop_pages(hfs.path)
    counted += read_all(hfs.path)
    told = traffic(hfs)
    ratio = told["read_bytes"] / counted
    if told["is_at_least"]:
        assert ratio <= 1.05
    else:
        assert 0.95 <= ratio <= 1.05
    assert told["source_bytes"] == sum(SIZE + number for number in range(COUNT))
    assert 0 <= told["minute"]["read_bytes"] <= told["read_bytes"]


READER = """
import os, sys
total = 0
for _ in range(int(sys.argv[2])):
    for name in sorted(os.listdir(sys.argv[1])):
        with open(os.path.join(sys.argv[1], name), "rb", buffering=0) as file:
            while part := file.read(1 << 20):
                total += len(part)
print(total, flush=True)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where a plain user may enter, with a folder of their own in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "own").mkdir()
        if os.geteuid() == 0:
            shutil.chown(made / "own", UID, UID)
        yield made


@pytest.mark.parametrize("options", [("--io-mode", "daemon"), ("--io-mode", "stateless", "--immutable")])
def test_small_files_that_a_plain_user_reads_whole(open_folder: Path, options: tuple[str, ...]) -> None:
    """Mounted by fusermount3, with the limits that the kernel has for whom it does not trust."""
    (open_folder / "source").mkdir()
    for number in range(COUNT):
        (open_folder / "source" / str(number)).write_bytes(pattern(number + 1, 0, SIZE + number))
    own, mountpoint = open_folder / "own", open_folder / "own" / "data"
    settings = (f"HOME={own}", f"HFS_LOG_FILE={own}/log", f"PATH={environment()['PATH']}")
    there = ("--source", open_folder / "source", "--at", mountpoint, "--cache", own / "cache", *options, "--quiet")
    read_and_ask = 'python3 -c "$1" "$2" "$3" && hfs status --json "$2"'
    command = ("sh", "-c", read_and_ask, "sh", READER, mountpoint, str(ROUNDS))
    done = run(*as_plain_user(open_folder), "env", *settings, "sh", "-c", 'mkdir "$0" && exec "$@"', mountpoint,
               "hfs", "run", *there, "--", *command)  # fmt: skip
    assert done.returncode == 0, done
    counted, status = (json.loads(line) for line in done.stdout.splitlines())
    assert counted == ROUNDS * sum(SIZE + number for number in range(COUNT))
    assert (status["io_mode"]["mode"], status["config"]["mountpoint"]["value"]) == (options[1], str(mountpoint))
    told = status["traffic"]
    assert told["is_at_least"] == (options[1] == "stateless")
    ratio = told["read_bytes"] / counted
    assert ratio <= 1.05
    assert told["is_at_least"] or ratio >= 0.95
    assert told["source_bytes"] == counted / ROUNDS
