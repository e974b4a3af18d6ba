"""Hard links through a real mount: one file, several names, whatever becomes of one of them."""

import os
import time
from pathlib import Path

import pytest

from hfs.client.client import Client
from tests.fuse.harness import HfsMount
from tests.fuse.injection import SETTLED, injected, setting
from tests.fuse.modes import warm
from tests.fuse.users import NOBODY, needs_root
from tests.support.pattern import check, pattern, write_pattern

SIZE = 200_000


def test_hard_links_under_the_sweep(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """A file with two names in one directory is swept as any other, and read by both afterwards."""
    source = tmp_path / "source"
    source.mkdir()
    write_pattern(source / "a", 7, SIZE)
    os.link(source / "a", source / "b")
    (source / "d").mkdir()
    os.link(source / "a", source / "d" / "c")
    hfs = hfs_mount(source, "--ttl", "0.2", env=injected(setting("hfs.mountd.daemon.service:_SWEEP_S", 0.05)))
    warm(hfs)
    client = Client(str(hfs.socket))
    while client.status()["open"]["names"] > 0:
        pass  # each answer is one round of the daemon's event loop; the time limit of the test ends it
    for name in ("a", "b", "d/c"):
        check(7, 0, (hfs.path / name).read_bytes())
    assert os.stat(hfs.path / "a").st_ino == os.stat(hfs.path / "d" / "c").st_ino


@pytest.mark.parametrize("names", [("d/a", "b"), ("b", "d/a")])
def test_a_file_is_read_on_by_its_other_name(tmp_path: Path, hfs_mount: HfsMount, names: tuple[str, str]) -> None:
    """The directory with one of its names was moved out of SOURCE: open handles go on, and nothing is dropped."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    write_pattern(source / "d" / "a", 7, SIZE)
    os.link(source / "d" / "a", source / "b")
    hfs = hfs_mount(source, "--ttl", "0")
    with open(hfs.path / names[0], "rb", buffering=0) as first, open(hfs.path / names[1], "rb", buffering=0) as file:
        check(7, 0, first.read(100))
        os.rename(source / "d", tmp_path / "elsewhere")
        assert os.pread(file.fileno(), 1000, SIZE - 1000) == pattern(7, SIZE - 1000, 1000)
    check(7, 0, (hfs.path / "b").read_bytes())
    assert hfs.status()["version_changes"] == 0


def test_files_that_are_linked_from_another_tree_are_small_files_like_all_others(
    tmp_path: Path, hfs_mount: HfsMount
) -> None:
    """As in environments and snapshots that are made of links: the data plane has both names of each, and the source
    gives its bytes once."""
    source = tmp_path / "source"
    sizes = {f"f{number:03}": 1000 + number for number in range(200)}
    for folder in ("first", "second"):
        (source / folder).mkdir(parents=True)
    for number, (name, size) in enumerate(sizes.items(), 1):
        write_pattern(source / "first" / name, number, size)
        os.link(source / "first" / name, source / "second" / name)
    hfs = hfs_mount(source, env=SETTLED)
    for folder in ("first", "second"):
        for number, (name, size) in enumerate(sizes.items(), 1):
            assert (hfs.path / folder / name).read_bytes() == pattern(number, 0, size)
    once = sum(sizes.values())
    # The first file of a directory may be read before the data plane has the directory.
    assert once <= hfs.source_bytes() <= once + 2 * max(sizes.values())
    assert hfs.status()["slots"]["known"] > len(sizes)
    for name in sizes:
        assert os.stat(hfs.path / "first" / name).st_ino == os.stat(hfs.path / "second" / name).st_ino


@needs_root
def test_another_user_reads_on_by_the_other_name(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Who may read a file is asked of the source by a name that still leads to it."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    source.chmod(0o755)
    write_pattern(source / "d" / "a", 7, SIZE)
    (source / "d" / "a").chmod(0o644)
    os.link(source / "d" / "a", source / "b")
    hfs = hfs_mount(source, "--ttl", "0.2")
    for name in ("d/a", "b"):
        check(7, 0, (hfs.path / name).read_bytes())
    os.rename(source / "d", tmp_path / "elsewhere")
    for _ in range(3):
        assert NOBODY.reads(hfs.path, "b") == pattern(7, 0, SIZE)
        time.sleep(0.3)
