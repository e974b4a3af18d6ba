"""A power loss at any moment: the cache opens, committed chunks have the right bytes, none that was reported is lost.

The writes of a process that works on a cache are recorded below index and objects, with its syncs (tests/power), and
the directories that a loss may leave are made and opened. The same checks must fail when a sync that the cache rests on
is taken out of the code.
"""

import filecmp
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.power.child import BREAKAGES
from tests.power.crash_child import few_numbers_leased
from tests.power.replay import History, State, choices, make, read_records
from tests.support.faults import CAPACITY_BYTES, verify

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

Recorded = Callable[[str], History]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that is preloaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("recorder") / "record.so"
    source = Path(__file__).with_name("record.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


@pytest.fixture
def recorded(recorder: Path, tmp_path: Path) -> Recorded:
    """recorded(breakage): the history of the work, in tmp_path/cache, whole or broken in one place."""

    def record(breakage: str = "") -> History:
        cache, log = tmp_path / "cache", tmp_path / "log"
        environment = {**os.environ, "LD_PRELOAD": str(recorder), "RECORD_BELOW": str(cache), "RECORD_LOG": str(log)}
        command = [sys.executable, "-m", "tests.power.child", str(cache), breakage]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return History(read_records(log), str(cache))

    return record


@pytest.fixture
def state_directory() -> Iterator[Path]:
    """Where a state is made: in memory, if that can be, since each has some hundred files and directories."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory) / "state"


@pytest.fixture(autouse=True)
def _few_numbers_leased() -> Iterator[None]:
    with few_numbers_leased():
        yield


def check_state(history: History, at: int, state: State, into: Path) -> None:
    """One loss: see the file's story."""
    shutil.rmtree(into, ignore_errors=True)
    make(state, into)
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(verify, str(into), CAPACITY_BYTES, history.reported(at), clock=clock)
    with closing(sqlite3.connect(into / "index.sqlite")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def check_losses(history: History, into: Path, every: int) -> int:
    """Losses all over the history, of one kind after the other; all kinds after each unlink and each sync of all."""
    seen: set[int] = set()
    for number, at in enumerate(history.points()):
        kinds = choices(at)
        some = [list(kinds)[number // every % len(kinds)]] if number % every == 0 else []
        for kind in kinds if history.records[at - 1].kind in "UPA" else some:
            state = history.state(at, *kinds[kind])
            key = hash((tuple(state.items()), tuple(sorted(history.reported(at)))))
            if key in seen:
                continue
            seen.add(key)
            try:
                check_state(history, at, state, into)
            except BaseException as error:
                record = history.records[at - 1]
                error.add_note(f"a loss after record {at} ({record.kind} {record.name}), {kind}")
                raise
    return len(seen)


def test_the_records_hold_all_that_was_written(recorded: Recorded, tmp_path: Path) -> None:
    """With nothing lost they make the directory as it is."""
    history = recorded("")
    make(history.state(len(history.records), *choices(0)["everything"]), tmp_path / "made")
    for folder, _, names in os.walk(tmp_path / "cache"):
        made = tmp_path / "made" / os.path.relpath(folder, tmp_path / "cache")
        names = [name for name in names if not name.endswith("-shm")]
        assert sorted(os.listdir(folder)) == sorted(
            [*os.listdir(made), *(n for n in os.listdir(folder) if "-shm" in n)]
        )
        same, different, failed = filecmp.cmpfiles(folder, made, names, shallow=False)
        assert (different, failed) == ([], [])
        assert sorted(same) == sorted(names)


@pytest.mark.parametrize(
    ("every", "least"),
    [(10, 70), pytest.param(1, 350, marks=[pytest.mark.long, pytest.mark.timeout(300)])],
)
def test_a_power_loss_leaves_no_wrong_byte_and_loses_nothing_that_was_reported(
    recorded: Recorded, state_directory: Path, every: int, least: int
) -> None:
    assert check_losses(recorded(""), state_directory, every) >= least


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_sync_that_is_taken_out_is_missed(
    recorded: Recorded, state_directory: Path, monkeypatch: pytest.MonkeyPatch, breakage: str
) -> None:
    monkeypatch.setattr(
        logging.getLogger("hfs.mountd.cache.objects.context"), "disabled", True
    )  # the cache is to be found broken
    with pytest.raises(AssertionError, match=BREAKAGES[breakage].found):
        check_losses(recorded(breakage), state_directory, every=10)
