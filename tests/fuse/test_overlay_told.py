"""What overlays are told, to whom, and what becomes of it: offered with `--immutable`, evicted as their makers say, and
nothing while somebody records. Real mounts; makers that only say that they are.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from hfs.client.client import Client
from scripts.benchmarks.plain_user import UID
from tests.fuse.conftest import Mounts
from tests.fuse.harness import Hfs, HfsMount, here, must_here, run
from tests.fuse.overlaid import LARGE, SOON, filled, told, uncovered, until
from tests.support.makers import FakeMaker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


OVERLAY = ("--io-mode", "overlay", "--immutable")


@pytest.fixture(scope="module")
def shown(shared_folder: Path, shared_mount: Mounts) -> Hfs:
    """A mount that says where everything lies, to those who make overlays."""
    hfs = uncovered(shared_mount(filled(shared_folder / "source"), *OVERLAY))
    must_here("cache", "warm", hfs.path)
    return hfs


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--io-mode", "daemon", "--immutable"), None),
        ((), "only with --immutable"),
    ],
)
def test_other_mounts_tell_nothing(
    tmp_path: Path, hfs_mount: HfsMount, options: tuple[str, ...], why: str | None
) -> None:
    hfs = hfs_mount(filled(tmp_path / "source"), *options)
    must_here("cache", "warm", hfs.path)
    assert told(hfs.path / "a") == [None, None]
    io_mode = hfs.status()["io_mode"]
    assert io_mode["overlays"] is None
    assert why is None or why in io_mode["overlay"]


def test_with_immutable_alone_they_are_offered_and_the_mode_is_chosen_as_before(
    tmp_path: Path, hfs_mount: HfsMount
) -> None:
    hfs = hfs_mount(filled(tmp_path / "source"), "--immutable")
    must_here("cache", "warm", hfs.path)
    io_mode = hfs.status()["io_mode"]
    assert io_mode["mode"] != "overlay"
    assert (io_mode["overlay"], io_mode["overlays"]["makers_now"]) == ("available", 0)
    assert told(hfs.path / "a")[0] == told(hfs.path / "large")[0] == b""
    assert not hfs.status()["by_kernel"]["overlays"], "nobody has made one"


def test_another_user_is_told_nothing(shown: Hfs) -> None:
    for path in shown.path.parents:
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 1:
            path.chmod(path.stat().st_mode | 0o55)
    for name in ("a", "large"):
        code = f"import os; os.setuid({UID}); os.getxattr({str(shown.path / name)!r}, 'user.overlay.metacopy')"
        assert "No data available" in run(sys.executable, "-c", code).stderr


def test_while_somebody_records_nothing_is_told(shown: Hfs) -> None:
    while_recording: list[list[bytes | None]] = []
    for _ in Client(str(shown.socket)).touches(
        lambda: while_recording.append(told(shown.path / "a")), lambda: bool(while_recording)
    ):
        pass
    assert while_recording == [[None, None]]
    until(lambda: told(shown.path / "a")[0] == b"")


def test_where_nobody_makes_overlays_all_is_evicted(shown: Hfs) -> None:
    hfs = shown
    must_here("cache", "warm", hfs.path)
    assert told(hfs.path / "a")[0] == told(hfs.path / "large")[0] == b""
    must_here("cache", "evict", hfs.path)
    assert hfs.status()["staged"]["files"] == 0
    assert told(hfs.path / "a") == [None, None]
    must_here("cache", "warm", hfs.path)


def test_what_was_told_goes_when_its_maker_has_made_another(tmp_path: Path, hfs_mount: HfsMount) -> None:
    hfs = uncovered(hfs_mount(filled(tmp_path / "source"), *OVERLAY))
    must_here("cache", "warm", hfs.path)
    maker = FakeMaker(Path(hfs.status()["io_mode"]["overlays"]["makers"]).parent)
    maker.renew()
    assert told(hfs.path / "a")[0] == told(hfs.path / "large")[0] == b""
    done = here("cache", "evict", hfs.path)
    assert done.returncode == 3
    assert re.search(r"2 files, 9\.\d+ MB more go when .* of those that process 17 made$", done.stderr.strip()), done
    assert hfs.status()["staged"]["files"] == 2, "what nobody was told of has gone"
    assert told(hfs.path / "a")[0] is told(hfs.path / "large")[0] is None
    maker.renew()
    until(lambda: hfs.status()["staged"]["files"] == 0)
    maker.end()


@pytest.mark.parametrize("name", [pytest.param("a", marks=pytest.mark.long), "large"])
def test_what_is_found_damaged_is_fetched_again_and_told_in_a_newer_one(
    tmp_path: Path, hfs_mount: HfsMount, name: str
) -> None:
    options = (*OVERLAY, "-o", "scrub=off")
    hfs = uncovered(hfs_mount(filled(tmp_path / "source"), *options, env=SOON))
    must_here("cache", "warm", hfs.path)
    overlays = hfs.status()["io_mode"]["overlays"]
    maker = FakeMaker(Path(overlays["makers"]).parent)
    maker.renew()
    empty, place = told(hfs.path / name)
    assert empty == b""
    assert place is not None
    path = Path(overlays["objects"]) / os.fsdecode(place[1:])
    with path.open("rb") as held:  # as an overlay has it
        with path.open("r+b") as damaged:
            damaged.write(b"rot")
        assert here("cache", "check", hfs.path).returncode != 0
        wanted = (hfs.source / name).read_bytes()
        until(lambda: os.pread(held.fileno(), LARGE, 0) == wanted)
    shown = maker.number()
    maker.renew()
    until(lambda: told(hfs.path / name)[0] == b"")
    until(lambda: maker.number() > shown)
    maker.end()


def test_the_cache_is_taken_again_whatever_the_root_of_the_source_is_like(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = filled(tmp_path / "source")
    source.chmod(0o1777)
    shutil.chown(source, UID, UID)
    for _ in range(2):
        hfs = uncovered(hfs_mount(source, *OVERLAY, cache=tmp_path / "cache"))
        must_here("cache", "warm", hfs.path)
        assert told(hfs.path / "a")[0] == b""
        hfs.umount()
