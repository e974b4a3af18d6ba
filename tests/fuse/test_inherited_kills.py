"""Kills under readers who never stop: each byte right, no error of any kind, and nothing left open in the end."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, Hfs, environment
from tests.fuse.inherited import FILES, MODES, size, wait_closed
from tests.fuse.modes import needs_passthrough
from tests.support.pattern import write_pattern

HfsMount = Callable[..., Hfs]

CRASHES = 3

READER = """
import os, random, sys
from tests.fuse.inherited import FILES, size
from tests.support.pattern import check
root, chance = sys.argv[1], random.Random(int(sys.argv[2]))
held = []

def read(number, descriptor):
    at = chance.randrange(size(number))
    data = os.pread(descriptor, 40_000, at)
    assert len(data) == min(40_000, size(number) - at), (number, at, len(data))
    check(number + 1, at, data)

def one():
    what, number = chance.random(), chance.randrange(FILES)
    if what < 0.4:
        descriptor = os.open(f"{root}/d{number % 3}/{number}", os.O_RDONLY)
        held.append((number, descriptor))
        read(number, descriptor)
    elif what < 0.9 and held:
        number, descriptor = chance.choice(held)
        if what < 0.6:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        read(number, descriptor)
    elif what < 0.92:
        assert len(os.listdir(f"{root}/d{number % 3}")) == FILES // 3
    while len(held) > 8:
        os.close(held.pop(chance.randrange(len(held)))[1])

for line in sys.stdin:
    for _ in range(150):
        one()
    print("went on", flush=True)
"""


@needs_passthrough
@pytest.mark.parametrize("mode", MODES)
def test_readers_who_never_stop_see_no_kill(tmp_path: Path, hfs_mount: HfsMount, mode: str) -> None:
    source = tmp_path / "source"
    for number in range(FILES):
        (source / f"d{number % 3}").mkdir(parents=True, exist_ok=True)
        write_pattern(source / f"d{number % 3}" / str(number), number + 1, size(number))
    hfs = hfs_mount(source, *MODES[mode])
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(hfs.path), str(seed)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    try:
        for _ in range(CRASHES):
            for reader in readers:
                assert reader.stdin
                print("go on", file=reader.stdin, flush=True)
            hfs.crash()  # somewhere in the midst of it
            for reader in readers:
                assert reader.stdout
                assert reader.stdout.readline() == "went on\n"
    finally:
        for reader in readers:
            reader.communicate()
    assert [reader.returncode for reader in readers] == [0, 0]
    assert wait_closed(hfs)
