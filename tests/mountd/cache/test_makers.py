"""The directory in which makers of overlays and the daemon meet: what stands there, and what is read of it."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from hfs.mountd.cache.generation import UNKNOWN, Makers, OverlaysFound, read_holders, read_makers, remove_left
from tests.conftest import Logs
from tests.support.faults import healthy_staging
from tests.support.makers import ROOT, FakeMaker


def test_what_makers_say_is_put_together(tmp_path: Path) -> None:
    (tmp_path / "overlays").mkdir()
    fd = os.open(tmp_path / "overlays", os.O_RDONLY)
    assert read_makers(fd) == Makers(0, None, None, 0)
    one, two = FakeMaker(tmp_path), FakeMaker(tmp_path, "maker-4194304-ffffffff")
    one.tell(3, 7)
    assert read_makers(fd) == Makers(2, 0, 0, 7), "one has said nothing yet"
    two.tell(5, 6)
    assert read_makers(fd) == Makers(2, 3, 6, 7)
    assert (read_holders(fd, 3), read_holders(fd, 4), read_holders(fd, 6)) == ([], [17], [17, 4194304])
    one.kill()
    assert read_makers(fd) == Makers(2, 3, 6, 7), "what it has made may be in use"
    two.end()
    assert read_makers(fd) == Makers(1, 3, None, 7), "nobody shows anything"
    os.close(fd)


def test_other_names_are_no_makers(tmp_path: Path) -> None:
    folder = tmp_path / "overlays"
    folder.mkdir()
    for name in (
        "maker-1-0123abcd.new",
        "maker-1-0123ABCD",
        "maker-x-0123abcd",
        "maker-12345678901-0123abcd",
        "number",
    ):
        (folder / name).write_bytes(bytes(16))
    (folder / "maker-1-00000001").mkdir()
    (folder / "maker-1-00000002").symlink_to(folder / "number")
    os.mkfifo(folder / "maker-1-00000003")
    fd = os.open(folder, os.O_RDONLY)
    assert read_makers(fd) == Makers()
    os.close(fd)


def test_a_million_names_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "overlays"
    folder.mkdir()
    monkeypatch.setattr("hfs.mountd.cache.generation._MOST_NAMES", 8)
    for number in range(9):
        (folder / f"strange-{number}").touch()
    fd = os.open(folder, os.O_RDONLY)
    assert read_makers(fd) == UNKNOWN, "who is not seen may have anything open"
    remove_left(fd)
    os.close(fd)


def test_what_killed_makers_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "overlays"
    folder.mkdir()
    killed, lives = FakeMaker(tmp_path, "maker-1-00000001"), FakeMaker(tmp_path, "maker-1-00000002")
    killed.kill()
    (folder / "number").write_text("1")
    fd = os.open(folder, os.O_RDONLY)
    remove_left(fd)
    assert sorted(os.listdir(fd)) == ["maker-1-00000002", "number"]
    lives.end()
    os.close(fd)


async def test_the_directory_is_for_us_alone_and_its_top_looks_like_the_root(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        assert await staging.telling.generation.found() is None
        owner = 65534 if os.geteuid() == 0 else os.geteuid()
        root = ROOT._replace(mode=0o41777, uid=owner)
        found = await staging.telling.generation.begin(root, is_new=True)
        assert found == (1, Makers())
        folder = Path(staging.telling.generation.makers)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        top = Path(staging.telling.generation.top).stat()
        assert (stat.S_IMODE(top.st_mode), top.st_uid, top.st_mtime_ns) == (0o1777, owner, root.mtime_ns)
        (folder / "number-next").touch()  # a daemon was killed while it moved it
        await staging.telling.generation.move(7, root._replace(mode=0o40700))
        assert Path(staging.telling.generation.number).read_text() == "7"
        assert stat.S_IMODE(Path(staging.telling.generation.top).stat().st_mode) == 0o700
        assert sorted(os.listdir(folder)) == ["connection", "needed", "number", "top"]
    # What lies there belongs to others, and has their mode: the next daemon takes the cache all the same.
    async with healthy_staging(tmp_path) as staging:
        assert await staging.telling.generation.begin(ROOT, is_new=False) == (7, Makers())


@pytest.mark.parametrize("left", ["", "x", "-3", "1" * 30])
async def test_whatever_the_number_is_the_next_is_larger_than_any_maker_knows(tmp_path: Path, left: str) -> None:
    async with healthy_staging(tmp_path) as staging:
        await staging.telling.generation.begin(ROOT, is_new=True)
        maker = FakeMaker(tmp_path)
        maker.tell(3, 9)
        Path(staging.telling.generation.number).write_text(left)
        found = await staging.telling.generation.begin(ROOT, is_new=False)
        assert 9 <= found.number <= 1 << 62
        assert found.makers == Makers(1, 3, 9, 9)


@pytest.mark.parametrize(
    ("device", "becomes", "has_gone"),
    [("0:77", "", True), ("0:77", "another's", True), ("0:77", "77", False), ("0:78", "", False), ("", "", False)],
)
async def test_what_killed_makers_have_left_counts_as_long_as_the_kernel_has_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, becomes: str, has_gone: bool
) -> None:
    connections = tmp_path / "connections"
    for name in ("77", "another's"):
        (connections / name).mkdir(parents=True)
    monkeypatch.setattr("hfs.mountd.cache.generation._CONNECTIONS", str(connections))
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(connections))
    cache = tmp_path / "cache"
    async with healthy_staging(cache) as staging:
        await staging.telling.begin(ROOT, device, is_new=True)
        maker = FakeMaker(cache)
        maker.tell(1, 1)
        maker.kill()
    (connections / "77").rename(connections / "before")
    if becomes:
        (connections / ("before" if becomes == "77" else becomes)).rename(connections / "77")
    async with healthy_staging(cache) as staging:  # as another daemon that lacks room opens it, or a command
        assert (staging.telling.makers.oldest is None) == has_gone
        await staging.telling.begin(ROOT, device, is_new=False)
        assert (staging.telling.makers.files == 0) == has_gone


async def test_a_directory_that_somebody_has_removed_is_made_again(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        generation = staging.telling.generation
        await generation.begin(ROOT, is_new=True)
        shutil.rmtree(generation.makers)
        assert await generation.look() == UNKNOWN, "who has made some may have anything open"
        await generation.move(3)
        assert Path(generation.number).read_text() == "3"
        assert await generation.look() == Makers()


@pytest.mark.parametrize("name", ["overlays", "overlays/top", "overlays/number"])
async def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    """Who has the rights to make one in the cache directory gains none by it."""
    (tmp_path / "elsewhere").mkdir(0o711)
    target = tmp_path / "elsewhere" / "file" if name == "overlays/number" else tmp_path / "elsewhere"
    target.write_text("7") if name == "overlays/number" else None
    async with healthy_staging(tmp_path / "cache") as staging:
        place = tmp_path / "cache" / name
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(target)
        with pytest.raises(OSError, match=r"directory|symbolic links"):
            await staging.telling.generation.begin(ROOT, is_new=True)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o711


async def test_where_the_directory_cannot_be_read_all_may_be_in_use(tmp_path: Path, logs: Logs) -> None:
    logs.expect("the directory of overlays")
    async with healthy_staging(tmp_path) as staging:
        generation, metrics = staging.telling.generation, staging.context.metrics
        (tmp_path / "overlays").touch()
        assert await generation.found() == OverlaysFound(0, UNKNOWN)
        assert await generation.look() == UNKNOWN
        await generation.move(3)
        await generation.clear()
        assert metrics["staging_errors"] == 4
