"""A root that several users share: whatever another user writes, locks or puts there governs his own things only."""

import contextlib
import fcntl
import itertools
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mountd.ledger import CacheRoot, Ledger, LedgerBusy, Quota, ServedSource, folder
from hfs.mountd.ledger import ledger as ledger_module
from hfs.mountd.ledger.record import write_grant, write_serving
from tests.fuse.users import needs_root

pytestmark = needs_root

STRANGER, PLAIN = 4242, 4243
SIZE = 1 << 40
OURS = "0-0123456789abcdef"
SOURCE = ServedSource(source=b"/data", device=5, inode=7, mountpoint=b"/mnt")
FILES = ("lock", "size", "start-0-1-2", "own-0", OURS)
"""All that we open in the folder, or did."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As sharing.md has it made, and the working directory: of others, who cannot come to its path."""
    path = tmp_path / "root"
    for made in (path, path / "ledger"):
        made.mkdir()
        made.chmod(0o1777)
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def ledger(root: Path) -> Iterator[Ledger]:
    with opened(root) as found:
        yield found


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Ledger]:
    fd = os.open(root, os.O_RDONLY)
    found = Ledger(fd, shared=True)
    os.close(fd)
    with contextlib.closing(found):
        yield found


@contextlib.contextmanager
def as_user(uid: int, work: Callable[[], object], *, leaving: bool = False) -> Iterator[None]:
    """`work` is done by a process of this user, which lives on in the block, or has a child do so and ends."""
    done, tell = os.pipe()
    ended, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            kept = work()
            if leaving and os.fork():
                os._exit(0)
            os.write(tell, b"." if kept is not False else b"!")
            os.read(ended, 1)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(ended)
    try:
        assert os.read(done, 1) == b"."
        yield
    finally:
        os.close(end)
        os.waitpid(pid, 0)
        assert os.read(done, 1) == b""  # the child has ended too
        os.close(done)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour passes in each wait for a lock."""
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(folder.time, "monotonic", lambda: next(hours))
    monkeypatch.setattr(folder.time, "sleep", lambda _seconds: None)


def write_record(path: Path, grant: Quota, owner: int = STRANGER) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    write_grant(fd, grant)
    write_serving(fd, SOURCE)
    os.close(fd)
    os.chown(path, owner, owner)


@pytest.mark.parametrize("size", [1, 1 << 62, 0])
def test_the_size_of_another_user_is_his_own(root: Path, ledger: Ledger, size: int) -> None:
    write_record(root / "ledger" / "size", Quota(size))
    assert ledger.size_bytes() is None
    registration = ledger.register(OURS, SOURCE, SIZE)
    assert registration.take(SIZE // 2, 1).granted_bytes >= SIZE // 2
    assert ledger.size_bytes() == SIZE
    registration.close()


def test_a_plain_user_has_a_size_beside_that_of_another(root: Path) -> None:
    write_record(root / "ledger" / "size", Quota(1))

    def work() -> None:
        with opened(Path()) as ledger:
            registration = ledger.register(f"{PLAIN}-0123456789abcdef", SOURCE, SIZE)
            assert registration.take(5, 1).size_bytes == SIZE

    with as_user(PLAIN, work):
        pass


def test_grants_of_others_keep_room_from_us_and_take_none(root: Path, ledger: Ledger) -> None:
    registration = ledger.register(OURS, SOURCE, SIZE)
    had = registration.take(0, SIZE // 2).granted_bytes
    for number in range(300):
        write_record(root / "ledger" / f"{STRANGER}-{number:016x}", Quota((1 << 62) + number, 1 << 62, 1 << 62))
    taken = registration.take(had, SIZE // 4)
    assert taken.granted_bytes == had
    assert registration.take(had, 0).granted_bytes == had
    assert len(taken.others) <= 256
    registration.close()


def lock_all(root: Path, kept: list[int]) -> None:
    """Whatever this user can open."""
    for path in (root, *root.rglob("*")):
        with contextlib.suppress(PermissionError):
            kept.append(os.open(path, os.O_RDONLY))
            fcntl.flock(kept[-1], fcntl.LOCK_EX)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("leaving", [False, True])
def test_locks_that_others_hold_stop_nobody(ledger: Ledger, leaving: bool) -> None:
    """Whoever /proc/locks says holds them."""
    ledger.register(OURS, SOURCE, SIZE).close()
    with ledger.start_lock(1, 2), ledger.locked():
        pass
    kept: list[int] = []
    with as_user(STRANGER, lambda: lock_all(Path(), kept), leaving=leaving):
        with ledger.start_lock(1, 2), pytest.raises(LedgerBusy), ledger.start_lock(1, 2):
            pass
        ledger.hold(OURS).close()
        assert [entry.running for entry in ledger.listed()] == [False]
        registration = ledger.register(OURS, SOURCE, SIZE // 2)
        assert [entry.running for entry in ledger.listed()] == [True]
        with pytest.raises(BlockingIOError):
            ledger.hold(OURS)
        registration.give_back(0, 0)
    assert registration.take(0, 1).size_bytes == SIZE // 2  # what waited for the lock
    registration.close()


def test_other_users_see_who_has_a_daemon(ledger: Ledger) -> None:
    registration = ledger.register(OURS, SOURCE, SIZE)

    def seen(running: bool) -> Callable[[], bool]:
        def work() -> bool:
            with opened(Path()) as theirs:
                return [(entry.name, entry.running) for entry in theirs.listed()] == [(OURS, running)]

        return work

    with as_user(PLAIN, seen(True)):
        pass
    registration.close()
    with as_user(PLAIN, seen(False)):
        pass
    kept: list[int] = []
    with as_user(STRANGER, lambda: lock_all(Path(), kept)):
        registration = ledger.register(OURS, SOURCE, SIZE)
    registration.take(0, 1)
    with as_user(PLAIN, seen(True)):
        pass
    registration.close()


def test_names_that_others_make_hide_none_of_ours_and_cost_little(
    root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours are known without them; and what they hide of others may be anything."""
    registration = ledger.register(OURS, SOURCE, SIZE)
    had = registration.take(0, SIZE // 2).granted_bytes
    monkeypatch.setattr(folder, "_MOST_NAMES", 0)
    assert [entry.name for entry in ledger.listed()] == [OURS]
    monkeypatch.setattr(folder, "_MOST_NAMES", 300)
    monkeypatch.setattr(ledger_module, "_MOST_RECORDS", 100)
    for number in range(200):
        (root / "ledger" / f"{5000 + number}-{number:016x}").touch()
        (root / "ledger" / f"{5000 + number}-a").touch()
    opens, really = [], folder.open_of

    def counted(*arguments: Any) -> int | None:
        opens.append(arguments)
        return really(*arguments)

    monkeypatch.setattr(folder, "open_of", counted)
    assert [entry.name for entry in ledger.listed()] == [OURS]
    assert 90 < len(opens) < 110
    assert registration.take(had, SIZE // 4).granted_bytes == had
    for path in (root / "ledger").glob("5*"):
        path.unlink()
    assert registration.take(had, SIZE // 4).granted_bytes > had
    registration.close()


@pytest.mark.parametrize("what", ["file", "directory", "pipe", "link", "hard link", "hard link to root's"])
def test_what_others_have_made_in_advance_is_neither_used_nor_touched(root: Path, tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for path in (*(root / "ledger" / name for name in FILES), root / OURS):
        if what == "file":
            path.write_text("mine")
            path.chmod(0o666)
        elif what == "directory":
            path.mkdir(0o777)
        elif what == "pipe":
            os.mkfifo(path, 0o666)
        elif what == "link":
            path.symlink_to(victim)
        elif what == "hard link to root's":
            path.hardlink_to(victim)
            continue
        else:
            theirs = path.with_name(f"theirs-{path.name}")
            theirs.write_text("mine")
            path.hardlink_to(theirs)
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    with contextlib.closing(CacheRoot(str(root))) as shared, shared.ledger.start_lock(1, 2):
        shared.make_way(OURS)
        registration = shared.ledger.register(OURS, SOURCE, SIZE)
        assert registration.take(0, 1).granted_bytes
        assert [entry.owner for entry in shared.ledger.listed()] == [0]
        registration.close()
    for name in (OURS, "size"):
        found = (root / "ledger" / name).lstat()
        assert (stat.S_ISREG(found.st_mode), found.st_uid, stat.S_IMODE(found.st_mode)) == (True, 0, 0o644)
    assert not os.path.lexists(root / OURS)
    assert victim.read_text() == "precious"
    assert "mine" in {path.read_text() for path in (root / "ledger").glob("*.not-ours-*") if path.is_file()} or (
        what not in {"file", "hard link"}
    )


def test_a_plain_user_goes_without_where_another_was_first(root: Path) -> None:
    name = f"{PLAIN}-0123456789abcdef"
    for path in (root / "ledger" / "lock", root / "ledger" / name, root / "ledger" / f"own-{PLAIN}"):
        path.touch(0o600)
        os.chown(path, STRANGER, STRANGER)

    def work() -> bool:
        with opened(Path()) as ledger, ledger.start_lock(1, 2):
            try:
                ledger.register(name, SOURCE, SIZE)
            except OSError:
                return True
        return False

    with as_user(PLAIN, work):
        pass


@pytest.mark.parametrize("name", ["lock", f"{PLAIN}-0123456789abcdef"])
def test_a_lease_of_another_user_is_no_daemon_of_ours(root: Path, name: str) -> None:
    """An open that would wait for its end fails as a lock does that is held."""
    path = root / "ledger" / name
    path.touch()
    path.chmod(0o666)
    os.chown(path, STRANGER, STRANGER)
    kept: list[int] = []

    def lease() -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        kept.append(os.open(f"ledger/{name}", os.O_RDONLY))
        fcntl.fcntl(kept[0], fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def work() -> bool:
        with opened(Path()) as ledger:
            try:
                ledger.register(f"{PLAIN}-0123456789abcdef", SOURCE, SIZE)
            except OSError as error:
                return not isinstance(error, BlockingIOError)
        return False

    with as_user(STRANGER, lease), as_user(PLAIN, work):
        pass


def test_root_takes_a_folder_that_another_user_has_made(root: Path) -> None:
    """Whose it is could rename what others have in it, sticky or not."""
    os.chown(root / "ledger", STRANGER, STRANGER)
    (root / "ledger").chmod(0o777)
    with opened(root):
        found = (root / "ledger").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o1777)
