"""A kill at any moment never leaves a wrong byte behind, and an error of the disk never does more than cost staging.

Killed for real, with SIGKILL, at each disk and index operation in turn (tests/power/crash_child.py), and from outside
at times of the machine's choosing. The same work with each operation failing, once or for ever. After each the cache is
opened with a healthy disk and `verify` of tests/support holds: every chunk committed has the right bytes, no garbage,
the account covers what the disk holds and never exceeds the capacity.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import MountError
from tests.conftest import Logs
from tests.power.crash_child import few_numbers_leased, work
from tests.support.faults import SHRINKS, Operations, check_all, fail, healthy_staging, put, verify, version_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _few_numbers_leased() -> Iterator[None]:
    with few_numbers_leased():
        yield


def _child(mode: str, cache: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.power.crash_child", mode, str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _verify(cache: Path) -> int:
    return trio.run(verify, str(cache), clock=trio.testing.MockClock(autojump_threshold=0))


# At each operation; before every commit to the project some of them have to do.
EACH = pytest.param(1, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.timeout(180)  # over a hundred processes, one after the other: on a busy machine more than 60 s
@pytest.mark.parametrize("every", [7, EACH])
@pytest.mark.parametrize("mode", ["points", "points encoded"])
def test_a_kill_at_any_operation_leaves_no_wrong_byte(tmp_path: Path, mode: str, every: int) -> None:
    """One cache lives through all the kills, so that each finds what the ones before have left."""
    cache = tmp_path / "cache"
    committed = 0
    with _child(mode, cache) as child:
        assert child.stdin
        assert child.stdout
        at, count = 1, 0
        while not count:
            print(at, at, file=child.stdin, flush=True)  # each run stages newer versions
            answer = child.stdout.readline().split()
            assert answer, "the work failed by itself"
            if answer[0] == "done":
                count = int(answer[1])
            committed = max(committed, _verify(cache))
            at += every
        child.stdin.close()
    assert count > 100, "the work has become too small to prove much"
    assert committed >= 10
    assert child.returncode == 0


@pytest.mark.slow
def test_a_kill_from_outside_leaves_no_wrong_byte(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for rounds in (1, 2, 3, 5):
        with _child("stream", cache) as child:
            assert child.stdout
            for _ in range(rounds):
                assert child.stdout.readline() == "round\n"
            child.kill()
        _verify(cache)


@pytest.mark.slow
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("encoding", [False, True], ids=["", "encoded"])
@pytest.mark.parametrize("every", [7, EACH])
def test_any_operation_may_fail(tmp_path: Path, logs: Logs, *, for_ever: bool, encoding: bool, every: int) -> None:
    """The Nth operation fails, for N = 1, 1 + every, ...: no exception, no wrong byte, a right account."""
    logs.expect("serving from the source|cannot be read|set aside")
    at, done = 1, False
    while not done:
        cache = tmp_path / str(at)
        operations = Operations(at, fail, for_ever=for_ever)
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(_work_with_faults, str(cache), operations, encoding, clock=clock)
        done = not operations.reached
        try:
            _verify(cache)
        except BaseException as error:
            error.add_note(f"after operation {at}: {operations.names[at - 1 : at]}")
            raise
        shutil.rmtree(cache)
        # A disk that fails for ever from one place on differs little from one that fails from the next.
        at += every if not for_ever or at < 40 else max(every, 7)


async def _work_with_faults(cache_dir: str, operations: Operations, encoding: bool) -> None:
    first = SHRINKS if encoding else 0
    try:
        async with healthy_staging(cache_dir, operations=operations, encoding=encoding) as staging:
            with trio.move_on_after(1000):
                await work(staging, 1, may_fail=True, first=first)
                await trio.sleep(100)  # of virtual time: rests and retries are over
                await check_all(staging, may_fail=True)
                put(staging, await staging.files.get(version_of(first + 7, 9000)), 0)
                await staging.committer.wait_committed()
    except MountError:
        pass  # a cache that cannot even be opened says so
