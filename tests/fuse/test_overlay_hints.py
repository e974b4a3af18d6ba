"""Hints where the kernel opens staged files by itself (`--io-mode overlay`): the objects are brought into memory, once,
and nobody waits for the opens. A real overlay of one command."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.native.cachestat import resident_of
from hfs.mounting.mountinfo import hfs_mounts
from tests.fuse.harness import drop_pages, environment, must
from tests.fuse.hinted import all_staged
from tests.fuse.overlaid import folder_for_overlays
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes overlays without a namespace of users")

COUNT, SIZE, LARGE = 30, 60_000, 9 << 20
NAMES = [*(f"{number}" for number in range(COUNT)), "large"]
TOTAL = COUNT * SIZE + LARGE

JOB = """
import json, os, sys
from hfs.client.client import Client, find_socket
from hfs.hint import hinted
source, names = sys.argv[1], json.loads(sys.argv[2])
client = Client(find_socket(source))
order = iter(hinted([0] * 5000 + [*range(len(names))], files=[f"{source}/{name}" for name in names], mount=source))
print(sum(" overlay hfs" in line for line in open("/proc/self/mountinfo")), next(order), flush=True)
for line in sys.stdin:
    if line == "draw\\n":
        print(next(order, None), flush=True)
        continue
    if line == "read\\n":
        for name in names:
            with open(f"{source}/{name}", "rb") as file:
                assert len(file.read()) == os.fstat(file.fileno()).st_size
    print(json.dumps(client.status(page_cache=True)), flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_overlays() as made:
        (made / "source").mkdir()
        for number, file in enumerate(NAMES):
            (made / "source" / file).write_bytes(pattern(number + 1, 0, LARGE if file == "large" else SIZE))
        yield made


def objects(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache").rglob("objects/*/*") if path.is_file()]


def in_memory(folder: Path) -> int:
    """Bytes of what is staged that the page cache has."""
    return sum(map(pages, objects(folder)))


def told(job: subprocess.Popen[str], line: str) -> str:
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write(f"{line}\n")
    job.stdin.flush()
    return job.stdout.readline()


def test_what_is_read_next_lies_in_memory_once_before_it_is_read(folder: Path) -> None:
    run = ["hfs", "run", "--source", folder / "source", "--cache", folder / "cache", "--immutable", "--quiet"]
    must(*run, "--", "hfs", "cache", "warm", folder / "source")
    assert sum(path.stat().st_size for path in objects(folder)) == TOTAL
    for path in objects(folder):
        drop_pages(path)
    assert in_memory(folder) < TOTAL / 10
    command = [*run, "--io-mode", "overlay", "--", "python3", "-c", JOB, folder / "source", json.dumps(NAMES)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(["env", *map(str, command)], **pipes) as job:
        try:
            assert job.stdout is not None
            overlays, first = job.stdout.readline().split()
            assert int(overlays) > 0  # two for a moment, while one takes the other's place
            assert first == "0"
            while not all_staged(json.loads(told(job, "look"))):
                pass  # the limit of the test ends it else
            while in_memory(folder) < TOTAL:
                told(job, "draw")  # by that alone the daemon knows how far the job is: it opens nothing
            before, after = json.loads(told(job, "look")), json.loads(told(job, "read"))
        finally:
            job.communicate()
    assert job.returncode == 0
    counters = {name: counter["value"] for name, counter in after["counters"].items()}
    assert counters["hinted_readahead_bytes"] >= TOTAL
    assert counters["hinted_pushes"] == counters["pushed_bytes"] == 0, "the mount has pages of none of them"
    assert sum(after["read_bytes"].values()) == 0, "nobody has read through the daemon"
    assert in_memory(folder) <= 1.05 * TOTAL
    assert before["by_kernel"]["look_ups"] == 0
    assert after["by_kernel"]["overlays"]
    assert 0 < after["by_kernel"]["look_ups"] <= len(NAMES)
    assert after["traffic"]["is_at_least"]
    assert after["page_cache"]["staged"] == {
        "sampled_files": len(NAMES),
        "sampled_bytes": TOTAL,
        "resident_bytes": TOTAL,
    }
    shutil.rmtree(folder / "cache")


TWICE = """
import os, sys, json
source, names = sys.argv[1], json.loads(sys.argv[2])
for line in sys.stdin:
    if line == "read\\n":
        for name in names:
            with open(f"{source}/{name}", "rb") as file:
                file.read()
    seen = [line for line in open("/proc/self/mountinfo") if f" {source} " in line and " overlay hfs" in line]
    print(*(line.split()[0] for line in seen), flush=True)
"""


def test_what_was_read_through_the_mount_lies_in_memory_once_when_overlays_open_it(folder: Path) -> None:
    run = ["hfs", "run", "--source", folder / "source", "--cache", folder / "cache", "--immutable", "--quiet"]
    command = [*run, "--io-mode", "overlay", "--", "python3", "-c", TWICE, folder / "source", json.dumps(NAMES)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(["env", *map(str, command)], **pipes) as job:
        try:
            first = told(job, "look").split()
            if not first:
                pytest.skip("this kernel has no overlayfs with a layer of data alone")
            told(job, "read")
            (place,) = {mount.mountpoint for mount in hfs_mounts() if str(folder) in mount.source}
            large = Path(place) / "large"  # to open a small one would bring it
            assert pages(large) > LARGE / 2, "read through the mount, which has its pages"
            while (now := told(job, "look").split()) == first or len(now) > 1:
                pass  # the limit of the test ends it else
            told(job, "read")
            assert pages(large) == 0
            assert in_memory(folder) == TOTAL
        finally:
            job.communicate()
    assert job.returncode == 0
    shutil.rmtree(folder / "cache")


def pages(path: Path) -> int:
    """Bytes of it that lie in memory."""
    with path.open("rb") as file:
        resident = resident_of(file.fileno())
        assert resident is not None
        return resident[0]
