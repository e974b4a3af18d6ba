"""Which file system an inode lies on, with mounts that come and go: of fakes, and what nothing can be proven of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.core.attributes import is_lasting, passing_id
from hfs.mountd.native.statx import InodeLocation, mount_number, place
from hfs.mountd.source import identity, identity_device
from hfs.mountd.source.file_systems import FileSystems
from hfs.mountd.source.identity import FileSystem, identify
from tests.conftest import Logs

ROOT = InodeLocation(1, 100)


class Mounts:
    """Descriptors are numbers here; `places` says where each leads, `there` which file system is mounted there."""

    def __init__(self) -> None:
        self.places = {0: ROOT}
        self.there = {ROOT: FileSystem("f" * 16, "nfs4", b"/data")}
        self.asked = 0

    def identify(self, fd: int) -> FileSystem:
        self.asked += 1
        return self.there[self.places[fd]]

    def place(self, fd: int) -> InodeLocation:
        return self.places[fd]

    def mount(self, fd: int, where: InodeLocation, source_id: str, *, on_device: bool = False) -> None:
        self.places[fd] = where
        self.there[where] = FileSystem(source_id, "some", b"/data/s%d" % fd, on_device)


@pytest.fixture
def mounts() -> Mounts:
    return Mounts()


@pytest.fixture
def systems(mounts: Mounts) -> Iterator[FileSystems]:
    made = FileSystems(0, "root", b"/data", identify=mounts.identify, place=mounts.place)
    yield made
    made.close()


def test_each_mount_is_asked_once_and_the_root_by_its_device(mounts: Mounts, systems: FileSystems) -> None:
    mounts.mount(1, InodeLocation(2, 101), "a")
    asked = mounts.asked
    assert [systems.of(fd) for fd in (0, 1, 1, 0)] == [(1, ""), (2, "a"), (2, "a"), (1, "")]
    assert mounts.asked == asked + 1
    known = [systems.known(InodeLocation(device, mount)) for device, mount in ((1, 5), (2, 101), (2, 102))]
    assert known == ["", "a", None]
    assert [systems.knows(name) for name in ("root", "a", "b")] == [True, True, False]


def test_another_mount_with_the_device_number_of_the_last_is_another(mounts: Mounts, systems: FileSystems) -> None:
    mounts.mount(1, InodeLocation(2, 101), "a")
    assert systems.of(1) == (2, "a")
    mounts.mount(1, InodeLocation(2, 102), "b")
    assert systems.of(1) == (2, "b")


def test_without_numbers_of_mounts_all_is_asked_again_when_anything_was_mounted(
    mounts: Mounts, systems: FileSystems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before 6.8."""
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(systems, "_changes", type("Poll", (), {"poll": staticmethod(lambda _limit: changed)}))
    mounts.mount(1, InodeLocation(2, 0), passing_id())
    first = systems.of(1)
    assert systems.of(1) == first
    assert systems.known(InodeLocation(2, 0)) is None
    mounts.mount(1, InodeLocation(2, 0), passing_id())
    assert systems.of(1) == first  # nothing was mounted: it cannot be another
    changed.append((0, 0))
    second = systems.of(1)
    assert second != first
    changed.clear()
    assert systems.of(1) == second


def test_a_copy_of_an_image_that_is_mounted_beside_it(
    mounts: Mounts, systems: FileSystems, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    """Its UUID is the same, and its files are other files."""
    monkeypatch.setattr("hfs.mountd.source.file_systems.mounted_devices", lambda: {1, 2, 3})
    logs.expect("/data/s2: its UUID is that of another file system")
    mounts.mount(1, InodeLocation(2, 101), "a", on_device=True)
    mounts.mount(2, InodeLocation(3, 102), "a", on_device=True)
    mounts.mount(3, InodeLocation(2, 103), "a", on_device=True)  # the first, bound to another place
    assert systems.of(1) == (2, "a")
    device, found = systems.of(2)
    assert device == 3
    assert not is_lasting(found)
    assert systems.of(3) == (2, "a")


def test_an_image_that_is_mounted_again_on_another_device_is_the_same(
    mounts: Mounts, systems: FileSystems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfs.mountd.source.file_systems.mounted_devices", lambda: {1, 3})
    mounts.mount(1, InodeLocation(2, 101), "a", on_device=True)
    assert systems.of(1) == (2, "a")
    mounts.mount(1, InodeLocation(3, 102), "a", on_device=True)
    assert systems.of(1) == (3, "a")


def test_an_export_that_is_mounted_twice_is_one(mounts: Mounts, systems: FileSystems) -> None:
    mounts.mount(1, InodeLocation(2, 101), "a")
    mounts.mount(2, InodeLocation(3, 102), "a")
    assert (systems.of(1), systems.of(2)) == ((2, "a"), (3, "a"))


def test_what_lies_on_a_passing_file_system_is_known_by_its_path(mounts: Mounts, systems: FileSystems) -> None:
    mounts.mount(1, InodeLocation(2, 101), passing_id())
    mounts.mount(2, InodeLocation(3, 102), "a")
    systems.of(1), systems.of(2)
    assert systems.is_passing(b"s1")
    assert systems.is_passing(b"s1/deep/file")
    assert not systems.is_passing(b"s10")
    assert not systems.is_passing(b"s2")
    assert [(entry["path"], entry["lasting"]) for entry in systems.shown()] == [("", True), ("s1", False), ("s2", True)]


def mountinfo(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    number, _, device, _, point = line.split(" ")[:5]
    kind, source, options = line.partition(" - ")[2].split(" ")
    mount = identity._Mount(int(number), device, *(field.encode() for field in (point, kind, source, options)))
    monkeypatch.setattr(identity, "_mount_of", lambda _fd: mount)
    monkeypatch.setattr(identity, "_statfs", lambda _fd: (0, 0))


@pytest.mark.parametrize(
    ("line", "lasting"),
    [
        ("5 1 0:50 / /data rw - nfs4 server:/export rw", True),
        ("5 1 0:50 / /data rw - lustre 10.0.0.1@tcp:/work rw", True),
        ("5 1 0:50 / /data rw - beegfs beegfs_nodev rw", True),
        ("5 1 0:50 / /data rw - fuse.ceph-fuse ceph-fuse rw", True),
        ("5 1 0:50 / /data rw - fuse.sshfs user@host:/data rw", True),
        ("5 1 0:50 / /data rw - fuse.bindfs /usr rw", True),
        ("5 1 0:50 / /data rw - fuse.squashfuse squashfuse rw", False),
        ("5 1 0:50 / /data rw - fuse.archivemount /etc/passwd rw", False),
        ("5 1 0:50 / /data rw - tmpfs none rw", False),
        ("5 1 0:50 / /data rw - tmpfs host:/x rw", False),
        ("5 1 0:50 / /data rw - overlay overlay rw", False),
        ("5 1 0:50 / /data rw - unheard-of name rw", False),
        ("5 1 0:50 / /data ro - erofs /etc/passwd ro", False),
        ("5 1 7:999999 / /data ro - squashfs /dev/loop0 ro", False),
    ],
)
def test_what_proves_which_file_system_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, lasting: bool
) -> None:
    mountinfo(monkeypatch, line)
    monkeypatch.setattr(identity_device, "sample", lambda _device: None)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        found = [identify(fd) for _ in range(2)]
    finally:
        os.close(fd)
    assert [one.lasting for one in found] == [lasting] * 2
    assert (found[0].id == found[1].id) == lasting
    assert re.fullmatch("[0-9a-f]{16}" if lasting else "~[0-9a-f]{16}", found[0].id)


def test_two_exports_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    try:
        found = set()
        for source in ("server:/a", "server:/b", r"server:/a\040b"):
            mountinfo(monkeypatch, f"5 1 0:50 / /data rw - nfs4 {source} rw")
            found.add(identify(fd).id)
    finally:
        os.close(fd)
    assert len(found) == 3


def test_a_file_and_its_directory_lie_on_one(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "l").symlink_to("f")
    fds = [os.open(tmp_path / name, os.O_PATH | os.O_NOFOLLOW) for name in ("", "f", "l")]
    try:
        assert len({place(fd) for fd in fds}) == 1
        found = {identify(fd) for fd in fds}
        assert len(found) == 1 or not any(one.lasting for one in found)
        assert place(fds[0]).device == tmp_path.stat().st_dev
    finally:
        for fd in fds:
            os.close(fd)


def test_the_number_of_a_mount_is_told_by_statx_too() -> None:
    """Where a thread that is another user may not read fdinfo (before Linux 5.14)."""
    for path in ("/", "/proc", "/sys"):
        fd = os.open(path, os.O_PATH)
        try:
            with open(f"/proc/self/fdinfo/{fd}") as lines:
                (number,) = (int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))
            assert mount_number(fd) == number
        finally:
            os.close(fd)
