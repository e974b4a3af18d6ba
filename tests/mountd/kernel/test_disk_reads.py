"""How reads of a disk wait: by the kernel's own figures, as long as they count; nothing where there are none."""

import os
from pathlib import Path

from hfs.mountd.kernel import DiskReads
from hfs.policies.prefetch.yielding import Waits

DEVICE = os.makedev(259, 3)


def put(folder: Path, reads: int, spent_ms: int, waiting: int) -> None:
    there = folder / "259:3"
    there.mkdir(exist_ok=True)
    (there / "stat").write_text(f"{reads:8} 1 2 {spent_ms:8} 700 8 9 1000 {waiting} 11 12 0 0 0 0 0 0\n")
    (there / "inflight").write_text(f"{waiting:8}        5\n")


def test_what_is_read_while_it_counts_is_added_up(tmp_path: Path) -> None:
    disk = DiskReads(DEVICE, tmp_path)
    put(tmp_path, 1000, 5000, 3)
    assert disk.look(counts=True) == Waits(0, 0, 0), "what was before is nobody's"
    put(tmp_path, 1010, 5020, 2)
    assert disk.look(counts=True) == Waits(10, 20_000_000, 2)
    put(tmp_path, 2000, 9000, 7)
    assert disk.look(counts=False) == Waits(10, 20_000_000, 0)
    put(tmp_path, 3000, 9900, 7)
    assert disk.look(counts=True) == Waits(10, 20_000_000, 0)
    put(tmp_path, 3001, 9901, 1)
    assert disk.look(counts=True) == Waits(11, 21_000_000, 1)


def test_a_disk_that_tells_nothing_is_a_disk_that_nobody_waits_for(tmp_path: Path) -> None:
    disk = DiskReads(DEVICE, tmp_path)
    assert disk.look(counts=True) == Waits(0, 0, 0)
    put(tmp_path, 1, 2, 3)
    (tmp_path / "259:3" / "inflight").write_text("")
    assert disk.look(counts=True) == Waits(0, 0, 0)


def test_the_kernel_tells_it_of_the_disks_of_this_machine() -> None:
    for place in Path("/sys/dev/block").glob("*"):
        major, minor = map(int, place.name.split(":"))
        disk = DiskReads(os.makedev(major, minor))
        disk.look(counts=True)
        assert min(disk.look(counts=True)) >= 0
