"""What daemons tell each other: fresh notices of those who wait for the same server; none that are torn, old, false."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.ledger import Board, CacheRoot, Ledger, NeighbourWaits, Notice, Registration, ServedSource
from hfs.mountd.ledger.record import read_notice, write_notice
from hfs.policies.prefetch.yielding import Waits

SIZE = 1 << 30
SECOND_NS = 1_000_000_000
NONE = Waits(0, 0, 0)


class Daemons:
    """Of one root, with one clock."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700)
        self.path = root
        self.root = CacheRoot(str(root))
        self.now_ns = 100 * SECOND_NS
        self.registrations: dict[str, Registration] = {}
        self.boards: dict[str, Board] = {}

    def start(self, name: str, device: int = 1) -> Board:
        """A daemon of a source on this device."""
        self.boards[name] = board = Board(self.root.ledger, self.enter(name, device), device, lambda: self.now_ns)
        return board

    def enter(self, name: str, device: int = 1) -> Registration:
        serving = ServedSource(source=name.encode(), device=device, inode=len(self.registrations))
        self.registrations[name] = entered = self.root.ledger.register(named(name), serving, SIZE)
        return entered

    def end(self, name: str) -> None:
        """As a kill does: its lock goes, its record stays."""
        self.registrations.pop(name).close()
        self.boards.pop(name, None)

    def record(self, name: str) -> Path:
        return self.path / "ledger" / named(name)

    def close(self) -> None:
        for name in list(self.registrations):
            self.end(name)
        self.root.close()


def named(name: str) -> str:
    return f"{os.geteuid()}-{name}"


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    before = len(os.listdir("/proc/self/fd"))
    found = Daemons(tmp_path / "root")
    yield found
    found.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_hears_the_others(daemons: Daemons) -> None:
    first, second = daemons.start("a"), daemons.start("b")
    assert first.exchange(NONE, NONE) == {}
    assert second.exchange(Waits(7, 70, 2), Waits(8, 80, 3)) == {named("a"): NeighbourWaits(NONE, NONE)}
    assert first.exchange(NONE, NONE) == {named("b"): NeighbourWaits(Waits(7, 70, 2), Waits(8, 80, 3))}


def test_one_alone_tells_nobody(daemons: Daemons) -> None:
    alone = daemons.start("a")
    before = daemons.record("a").read_bytes()
    assert alone.exchange(Waits(1, 1, 1), NONE) is None
    assert daemons.record("a").read_bytes() == before


def test_who_reads_from_another_server_is_heard_of_the_disk_alone(daemons: Daemons) -> None:
    first, other = daemons.start("a", device=1), daemons.start("b", device=2)
    first.exchange(NONE, NONE)
    other.exchange(Waits(1, 1, 1), Waits(2, 2, 2))
    assert first.exchange(NONE, NONE) == {named("b"): NeighbourWaits(None, Waits(2, 2, 2))}


def test_what_is_old_is_nothing_and_who_still_waits_says_so_again(daemons: Daemons) -> None:
    first, second = daemons.start("a"), daemons.start("b")
    second.exchange(NONE, NONE)
    first.exchange(Waits(1, 10, 0), NONE)
    assert named("a") in heard(second)
    daemons.now_ns += SECOND_NS * 2 // 5
    first.exchange(Waits(1, 10, 0), NONE)  # nothing new
    assert named("a") in heard(second)
    daemons.now_ns += SECOND_NS * 2 // 5
    first.exchange(Waits(1, 10, 0), NONE)
    assert named("a") not in heard(second)
    first.exchange(Waits(1, 10, 1), NONE)
    assert heard(second) == {named("a"): NeighbourWaits(Waits(1, 10, 1), NONE)}
    daemons.now_ns += SECOND_NS
    first.exchange(Waits(1, 10, 0), Waits(0, 0, 1))  # for the disk only
    assert heard(second) == {named("a"): NeighbourWaits(Waits(1, 10, 0), Waits(0, 0, 1))}


def test_a_daemon_that_was_killed_while_it_waited_is_not_heard_for_long(daemons: Daemons) -> None:
    first, second = daemons.start("a"), daemons.start("b")
    second.exchange(NONE, NONE)
    first.exchange(Waits(1, 10, 5), NONE)
    daemons.end("a")
    assert named("a") in heard(second)
    daemons.now_ns += SECOND_NS
    assert second.exchange(NONE, NONE) is None


def test_times_of_another_clock_are_nothing(daemons: Daemons) -> None:
    """A machine that was started again, or a container with its own clock."""
    first, second = daemons.enter("a"), daemons.start("b")
    second.exchange(NONE, NONE)
    for told_ns in (0, daemons.now_ns - SECOND_NS, daemons.now_ns + SECOND_NS, (1 << 64) - 1):
        first.tell(Notice(told_ns, Waits(1, 1, 1), Waits(1, 1, 1)))
        assert second.exchange(NONE, NONE) == {}


def heard(board: Board) -> dict[str, NeighbourWaits]:
    found = board.exchange(NONE, NONE)
    assert found is not None
    return found


def test_half_a_notice_is_none(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        write_notice(file.fileno(), before := Notice(1, Waits(2, 3, 4), Waits(5, 6, 7)))
        whole = path.read_bytes()
        assert read_notice(file.fileno()) == before
        write_notice(file.fileno(), after := Notice(1 << 40, *(Waits(1 << 41, 1 << n, 1 << 43) for n in (42, 45))))
        new = path.read_bytes()
        for cut in range(1024, 1024 + 72):
            os.pwrite(file.fileno(), new[:cut] + whole[cut:], 0)
            assert read_notice(file.fileno()) in (None, before, after)
        for size in range(1024, 1024 + 72):
            os.truncate(path, size)
            assert read_notice(file.fileno()) is None


def test_what_others_put_there_is_no_neighbour(daemons: Daemons) -> None:
    """Records of names that are not their owner's, links, pipes, folders, a file that is cut while it is read."""
    board = daemons.start("b")
    folder = daemons.path / "ledger"
    (folder / "12345-x").write_bytes(daemons.record("b").read_bytes())
    (folder / named("link")).symlink_to(daemons.record("b"))
    os.mkfifo(folder / named("pipe"))
    (folder / named("folder")).mkdir()
    assert board.exchange(NONE, NONE) is None
    hostile = daemons.enter("a")
    daemons.now_ns += 2 * SECOND_NS
    hostile.tell(Notice(daemons.now_ns, Waits(1, 1, 1), NONE))
    assert named("a") in heard(board)
    os.truncate(daemons.record("a"), 0)
    assert heard(board) == {}


def test_a_crowd_of_records_is_heard_in_part_and_our_own_first(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = daemons.start("own")
    for number in range(70):
        daemons.enter(f"{number:03}")
    others = {named(f"{number:03}") for number in range(40)}
    found = [e._replace(name=f"1-{e.name}") if e.name in others else e for e in daemons.root.ledger.listed()]
    monkeypatch.setattr(Ledger, "listed", lambda _ledger: found)
    monkeypatch.setattr(Ledger, "open_record", lambda _ledger, name: opened.append(name))
    opened: list[str] = []
    board.exchange(NONE, NONE)
    assert len(opened) == 64
    assert {named(f"{number:03}") for number in range(40, 70)} <= set(opened)
