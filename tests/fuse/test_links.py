"""Farms of links (git-annex, the snapshots of a hub, DVC): commands and hints follow links below SOURCE, and say of the
others what is the matter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, here

CONTENT = {f"{number:02d}": os.urandom(3000 + number) for number in range(6)}


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    """`objects` has the files; `train` names them by links of several kinds, `set` is a link to `train`."""
    tree = tmp_path / "tree"
    (tree / "objects").mkdir(parents=True)
    (tree / "train").mkdir()
    (tree / "set").symlink_to("train")
    for name, data in CONTENT.items():
        (tree / "objects" / name).write_bytes(data)
        (tree / "train" / name).symlink_to(f"../objects/{name}")
    (tree / "train" / "second").symlink_to("00")
    (tree / "train" / "again").symlink_to("../set")
    return tree


def cache(*arguments: object) -> tuple[int, str]:
    done = here("cache", *arguments)
    return done.returncode, done.stdout + done.stderr


def test_what_links_name_is_warmed_found_and_evicted(farm: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(farm)
    code, said = cache("warm", hfs.path / "set")
    assert code == 0, said
    assert hfs.status()["staged"]["files"] == len(CONTENT)
    reads = hfs.status()["source"]["reads"]
    for path in ("set/03", "train/second", "train/again/01"):
        code, said = cache("warm", hfs.path / path)
        assert (code, "warmed 1 file" in said) == (0, True), said
    assert hfs.status()["source"]["reads"] == reads
    code, said = cache("list", hfs.path / "train/04")
    assert "objects/04" in said, said
    code, said = cache("evict", hfs.path / "set/05")
    assert code == 0, said
    assert hfs.status()["staged"]["files"] == len(CONTENT) - 1


def test_links_that_cannot_be_followed_are_said(farm: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    (tmp_path / "beside").write_bytes(b"x")
    hfs = hfs_mount(farm)
    links = {
        "dangling": ("gone", "No such file"),
        "loop": ("loop", "Too many levels"),
        "out": ("../../beside", "leads out of SOURCE"),
        "absolute": (f"{farm}/objects/00", "not through the mount"),
    }
    for name, (target, _) in links.items():
        (farm / name).symlink_to(target)
    (farm / "up").symlink_to("train/..")
    (farm / "through").symlink_to(f"{hfs.path}/objects/02")
    os.mkfifo(farm / "pipe")
    for name, (_, why) in links.items():
        code, said = cache("warm", hfs.path / name)
        assert code != 0, said
        assert why in said, said
        assert name in said, said
        assert "b'" not in said
    code, said = cache("warm", hfs.path / "pipe")
    assert code != 0, said
    code, said = cache("warm", hfs.path / "through")
    assert code == 0, said
    assert hfs.status()["staged"]["files"] == 1
    code, said = cache("warm", hfs.path)
    assert code != 0, said
    assert "leads out of SOURCE" in said, said
    assert "No such file" not in said, said  # met on the way, it is nobody's loss
    assert hfs.status()["staged"]["files"] == len(CONTENT)


def refresh(*paths: Path) -> tuple[int, str]:
    done = here("refresh", *paths)
    return done.returncode, done.stdout + done.stderr


def test_what_a_link_names_is_refreshed(farm: Path, hfs_mount: HfsMount) -> None:
    """Also where it leads by another link, and where nothing was: jobs look there."""
    (farm / "whole").symlink_to("objects")
    (farm / "train" / "round").symlink_to("../train/../objects/03")
    (farm / "train" / "come").symlink_to("../objects/come")
    hfs = hfs_mount(farm, "--immutable")
    (farm / "up").symlink_to("train/..")
    (farm / "through").symlink_to(f"{hfs.path}/up/objects/03")
    assert not (hfs.path / "train" / "come").exists()
    (farm / "objects" / "come").write_bytes(b"come")
    assert not (hfs.path / "train" / "come").exists()
    assert refresh(hfs.path / "train" / "come")[0] == 0
    assert (hfs.path / "train" / "come").read_bytes() == b"come"
    links = ["train/again/03", "whole", "train/round", "through"]
    for number, link in enumerate(links):
        before = (hfs.path / "objects" / "03").read_bytes()
        (farm / "objects" / "03").write_bytes(b"changed" * number)
        assert (hfs.path / "objects" / "03").read_bytes() == before, "that is what --immutable says"
        code, said = refresh(hfs.path / link)
        assert code == 0, said
        assert (hfs.path / "objects" / "03").read_bytes() == b"changed" * number, link


def test_a_refreshed_link_that_cannot_be_followed(farm: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """It is refreshed itself; only of one that jobs follow to elsewhere nothing is seen through the mount."""
    (farm / "out").symlink_to(tmp_path)
    (farm / "gone").symlink_to("nothing")
    (farm / "circle").symlink_to("circle")
    hfs = hfs_mount(farm, "--immutable")
    for name in ("out", "gone", "circle"):
        assert os.readlink(hfs.path / name)
    code, said = refresh(hfs.path / "out")
    assert code != 0, said
    assert "out is a link to" in said, said
    assert "not through the mount" in said, said
    for name in ("gone", "circle"):
        (farm / name).unlink()
        (farm / name).symlink_to("objects/01")
    assert refresh(hfs.path / "gone", hfs.path / "circle", hfs.path / "nothing")[0] == 0
    for name in ("gone", "circle"):
        assert (hfs.path / name).read_bytes() == CONTENT["01"]
