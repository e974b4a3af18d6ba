"""The ledger of a cache root: grants, daemons, and a kill -9 at any moment."""

import contextlib
import errno
import fcntl
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.ledger import Ledger, LedgerBusy, Quota, QuotaRequest, ServedSource, folder
from hfs.mountd.ledger import ledger as ledger_module
from hfs.mountd.ledger.record import read_claims, read_grant, read_serving, write_claims, write_grant, write_serving

SIZE = 1000
A, B = (f"{os.geteuid()}-{name}" for name in "ab")
SOURCE = ServedSource(source=b"/data/\xff", device=5, inode=7, mountpoint=b"/mnt")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    fd = os.open(tmp_path, os.O_RDONLY)
    found = Ledger(fd)
    os.close(fd)
    yield found
    found.close()


def granted(ledger: Ledger) -> dict[str, int]:
    return {entry.name: entry.grant.granted_bytes for entry in ledger.listed()}


def settle(ledger: Ledger, name: str, used_bytes: int) -> None:
    with contextlib.closing(ledger.hold(name)) as hold:
        hold.settle(used_bytes)


def test_a_daemon_is_listed_with_what_it_serves_and_runs_until_it_is_closed(ledger: Ledger) -> None:
    registration = ledger.register(A, SOURCE, SIZE)
    (entry,) = ledger.listed()
    assert (entry.name, entry.serving, entry.running, entry.grant.granted_bytes) == (A, SOURCE, True, 0)
    assert ledger.size_bytes() == SIZE
    registration.close()
    assert not ledger.listed()[0].running


def test_a_cache_has_one_daemon(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_DAEMON_S", 0.0)
    registration = ledger.register(A, SOURCE, None)
    with pytest.raises(BlockingIOError):
        ledger.register(A, SOURCE, None)
    with pytest.raises(BlockingIOError):
        ledger.hold(A)
    registration.close()
    ledger.hold(A).close()
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        ledger.hold(B)


def test_room_is_taken_and_given_back(ledger: Ledger) -> None:
    first, second = ledger.register(A, SOURCE, SIZE), ledger.register(B, SOURCE, None)
    assert first.take(0, 1).granted_bytes == SIZE // 2
    assert first.take(0, SIZE).granted_bytes == SIZE
    taken = second.take(0, 100)
    assert (taken.granted_bytes, taken.size_bytes, [entry.name for entry in taken.others]) == (0, SIZE, [A])
    first.give_back(700, 300)
    assert second.take(0, 300).granted_bytes == 300
    assert granted(ledger) == {A: 700, B: 300}
    first.give_back(100, 300)  # never less than is used
    assert granted(ledger)[A] == 300
    first.close()
    second.close()


def test_the_size_is_that_of_the_newest_that_gives_one(ledger: Ledger) -> None:
    first = ledger.register(A, SOURCE, SIZE)
    second = ledger.register(B, SOURCE, None)
    assert ledger.size_bytes() == SIZE
    second.close()
    second = ledger.register(B, SOURCE, 2 * SIZE)
    assert ledger.size_bytes() == 2 * SIZE
    first.close()
    second.close()
    ledger.register(A, SOURCE, 3 * SIZE, again=True).close()  # after a crash: others may have set it since
    assert ledger.size_bytes() == 2 * SIZE
    ledger.register(A, SOURCE, None).close()  # alone: what an earlier one gave is over
    assert ledger.size_bytes() is None


def test_a_lowered_size_shows_at_the_next_look(ledger: Ledger) -> None:
    first = ledger.register(A, SOURCE, SIZE)
    first.take(900, 1)
    second = ledger.register(B, SOURCE, SIZE // 2)
    taken = first.take(900, 0)
    assert taken.granted_bytes == SIZE // 2  # to be evicted down to; until then what is used is accounted
    assert granted(ledger)[A] == 900
    first.close()
    second.close()


def test_what_nobody_serves_is_settled(ledger: Ledger) -> None:
    registration = ledger.register(A, SOURCE, SIZE)
    registration.take(10, 500)
    registration.close()
    settle(ledger, A, 10)
    assert ledger.listed()[0].grant[:2] == (10, 10)


def test_who_looks_at_a_record_for_a_moment_does_not_look_like_a_daemon(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons look all the time who else is there; a cache without one must give up room all the same."""
    named = f"{os.geteuid()}-a"
    ledger.register(named, ServedSource(source=b"/", device=1, inode=2), 100).close()
    looking = ledger.open_record(named)
    assert looking is not None
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(ledger_module.time, "sleep", lambda _seconds: fcntl.flock(looking, fcntl.LOCK_UN))
    ledger.hold(named).close()
    os.close(looking)


def test_two_threads_look_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for room, one for the board: neither reads what the other has not."""
    ledger.register(A, SOURCE, SIZE).close()
    scandir = os.scandir

    @contextlib.contextmanager
    def with_another(where: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        monkeypatch.setattr(os, "scandir", scandir)
        with scandir(where) as entries:
            first = next(entries)
            assert [entry.name for entry in ledger.listed()] == [A]
            yield itertools.chain([first], entries)

    monkeypatch.setattr(os, "scandir", with_another)
    assert [entry.name for entry in ledger.listed()] == [A]


@pytest.mark.slow
def test_damaged_records_are_not_believed(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "record"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    write_grant(fd, Quota(5, 3, 1))
    write_claims(fd, QuotaRequest(7, 9))
    write_serving(fd, SOURCE)
    assert (read_grant(fd), read_claims(fd), read_serving(fd)) == (Quota(5, 3, 1), QuotaRequest(7, 9), SOURCE)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert read_serving(fd) is None
        assert read_grant(fd) == (Quota(5, 3, 1) if cut >= 40 else None)
        assert read_claims(fd) == ((7, 9) if cut >= 536 else (0, 0))
    for place in range(40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_grant(fd) is None
    for place in range(512, 536):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_claims(fd) == (0, 0)
    os.close(fd)
    (tmp_path / "ledger" / "junk").write_bytes(b"junk")
    os.mkfifo(tmp_path / "ledger" / f"{os.geteuid()}-fifo")
    os.mkfifo(tmp_path / "ledger" / "size")
    assert ledger.listed() == []
    assert ledger.size_bytes() is None


def test_a_lock_that_is_not_let_go_is_told(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_LOCK_S", 0.0)
    registration = ledger.register(A, SOURCE, SIZE)
    holder = os.open(tmp_path / "ledger" / "lock", os.O_RDONLY)
    folder.lock(holder, 0)
    with pytest.raises(LedgerBusy, match="does not go on"):
        registration.take(0, 1)
    os.close(holder)
    registration.take(0, 1)
    registration.close()


def test_commands_that_would_start_the_same_daemon_take_turns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_START_S", 0.0)
    with ledger.start_lock(1, 2), ledger.start_lock(1, 3), pytest.raises(LedgerBusy), ledger.start_lock(1, 2):
        pass
    with ledger.start_lock(1, 2):
        assert ledger.listed() == []


def _take_and_give(root: Path, name: str, steps: int) -> None:
    """In a child: what a daemon does, a byte on descriptor 1 for each step; `use-NAME` is as large as what it holds."""
    fd = os.open(root, os.O_RDONLY)
    registration = Ledger(fd).register(name, SOURCE, SIZE)
    use = os.open(root / f"use-{name}", os.O_RDWR | os.O_CREAT)
    used = os.fstat(use).st_size
    while True:
        wanted = (used * 7 + 13) % 97 + 1
        if registration.take(used, wanted).granted_bytes >= used + wanted:
            used += wanted
        else:
            used -= used // 2
        os.ftruncate(use, used)
        registration.give_back(used + 20, used)
        os.write(steps, b".")


@pytest.mark.slow
@pytest.mark.parametrize("moments", [20, pytest.param(100, marks=pytest.mark.long)])
def test_a_daemon_that_is_killed_at_any_moment_leaves_no_more_than_the_size(
    tmp_path: Path, ledger: Ledger, moments: int
) -> None:
    for moment in range(moments):
        children = []
        for name in (A, B):
            heard, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    _take_and_give(tmp_path, name, told)
                finally:
                    os._exit(1)
            os.close(told)
            children.append((pid, heard))
        for _pid, heard in children:
            left = moment % 10 + 1
            while left:
                left -= len(os.read(heard, left))
        for pid, heard in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(heard)
        uses = {name: (tmp_path / f"use-{name}").stat().st_size for name in (A, B)}
        records = granted(ledger)
        assert sum(uses.values()) <= sum(records.values()) <= SIZE
        assert all(records[name] >= uses[name] for name in uses), (records, uses)
        if moment % 5 == 4:  # what a killed daemon had taken is not lost
            for name, used in uses.items():
                settle(ledger, name, used)
            assert granted(ledger) == uses


def test_others_can_read_all_of_it_whatever_the_umask_is(tmp_path: Path, ledger: Ledger) -> None:
    """What they cannot read is in none of their sums, and without the lock they cannot make any."""
    before = os.umask(0o077)
    try:
        with ledger.start_lock(1, 2):
            ledger.register(A, SOURCE, SIZE).close()
        (tmp_path / "ledger" / "lock").chmod(0o600)  # as earlier releases have left it
        with ledger.locked():
            pass
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ledger").iterdir()} == {0o644}


def test_what_is_no_file_says_no_size_and_stays(tmp_path: Path, ledger: Ledger) -> None:
    """In a root that several users share anybody may have put it there."""
    (tmp_path / "target").write_text("kept")
    (tmp_path / "ledger" / "size").symlink_to(tmp_path / "target")
    registration = ledger.register(A, SOURCE, SIZE)
    assert registration.take(5, 7).size_bytes is None
    registration.close()
    assert (tmp_path / "target").read_text() == "kept"
