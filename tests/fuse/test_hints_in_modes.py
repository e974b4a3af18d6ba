"""Hints in every I/O mode: a hinted run reads the right bytes, each of them once from the source."""

from pathlib import Path

import numpy as np
import pytest

from hfs.hint import hinted
from hfs.layouts.layout import Layout
from tests.fuse.harness import Hfs, HfsMount, drop_pages
from tests.fuse.hinted import all_staged, begun, content, total_of, tree, wait_until
from tests.fuse.modes import MODES, Mode
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

CHUNK = 64 << 10

pytestmark = pytest.mark.usefixtures("connections_end")


@pytest.fixture(params=[pytest.param(mode, id=name, marks=mode.marks) for name, mode in MODES.items()])
def mode(request: pytest.FixtureRequest) -> Mode:
    mode: Mode = request.param
    return mode


def mounted(mode: Mode, hfs_mount: HfsMount, source: Path) -> Hfs:
    """Nothing is warmed: that is what the hint is for."""
    return hfs_mount(source, *mode.options)


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.long)])
def test_files(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, mode: Mode, waits: bool) -> None:
    """Two epochs, the second with the page cache of the mount dropped; staged before they are read, and raced."""
    names = tree(tmp_path / "tree", 48)
    slow = slow_source(tmp_path / "tree")
    hfs = mounted(mode, hfs_mount, slow.path)
    sampler = hinted(np.random.default_rng(3).permutation(48), files=[hfs.path / name for name in names])
    for epoch in range(2):
        with begun(sampler) as (first, rest):
            if waits:
                wait_until(hfs, all_staged)
            for index in [first, *rest]:
                assert (hfs.path / names[index]).read_bytes() == content(index), (epoch, index)
        for name in names:
            drop_pages(hfs.path / name)
    # A reader who looks up the very file that is being read with others may read it himself; that is seldom.
    spare = 0 if waits else 2 * max(len(content(number)) for number in range(48))
    assert total_of(names) <= slow.counters()["read_bytes"] <= total_of(names) + spare
    assert hfs.status()["io_mode"]["mode"] == mode.mode


def test_samples_of_a_large_file(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, mode: Mode) -> None:
    data = pattern(5, 0, 30 * CHUNK + 777)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "large").write_bytes(data)
    slow = slow_source(tmp_path / "tree")
    hfs = mounted(mode, hfs_mount, slow.path)
    offsets = np.arange(0, len(data) - 9000, 9000)
    layout = Layout(
        names=b"large",
        file_sizes=np.array([len(data)]),
        file_mtimes_ns=np.array([(tmp_path / "tree" / "large").stat().st_mtime_ns]),
        extents=np.zeros(len(offsets), np.int64),
        offsets=offsets,
        sizes=np.full(len(offsets), 9000),
        made_from="a test",
    )
    sampler = hinted(np.random.default_rng(4).permutation(len(offsets)), layout=layout, mount=str(hfs.path))
    for _ in range(2):
        with begun(sampler) as (first, rest), (hfs.path / "large").open("rb", buffering=0) as file:
            wait_until(hfs, all_staged)
            for index in [first, *rest]:
                file.seek(offsets[index])
                assert file.read(9000) == data[offsets[index] : offsets[index] + 9000]
        drop_pages(hfs.path / "large")
    assert slow.counters()["read_bytes"] <= 1.1 * len(data)
    assert hfs.status()["io_mode"]["mode"] == mode.mode
