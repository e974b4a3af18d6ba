"""Hints whose files are links (git-annex, the snapshots of a hub, DVC): what they name is fetched ahead, for those who
may read it; of links that lead out of SOURCE it is said."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.client.client import Client
from hfs.hint import hinted
from hfs.mountd.wire.hints import LayoutFrame, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join
from hfs.training.hint_connection import HintConnection
from tests.fuse.harness import Hfs, HfsMount, hfs_command, must, must_here
from tests.fuse.hinted import all_staged, begun, content, counter, wait_until
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import GROUP, MEMBER, NOBODY, User, needs_root
from tests.support.pattern import pattern

pytestmark = pytest.mark.usefixtures("connections_end")

COUNT = 8


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    """`objects` has the files; `train` names them by links, `set` is a link to `train`."""
    tree = tmp_path / "tree"
    for folder in (tree, tree / "objects", tree / "train"):
        folder.mkdir()
        folder.chmod(0o755)
    for number in range(COUNT):
        (tree / "objects" / f"{number}").write_bytes(content(number))
        (tree / "train" / f"{number}").symlink_to(f"../objects/{number}")
    (tree / "set").symlink_to("train")
    return tree


def layout_of(status: dict[str, Any]) -> dict[str, Any]:
    (layout,) = status["hints"]["layouts"]
    return dict(layout)


def test_what_links_name_is_staged_and_links_that_lead_out_are_said_once(
    farm: Path, hfs_mount: HfsMount, tmp_path: Path
) -> None:
    (tmp_path / "beside").write_bytes(b"beside")
    (farm / "train" / "out").symlink_to("../../beside")
    (farm / "train" / "absolute").symlink_to(tmp_path / "beside")
    (farm / "train" / "second").symlink_to("0")
    hfs = hfs_mount(farm)
    (farm / "train" / "through").symlink_to(f"{hfs.path}/objects/1")
    names = [*(f"set/{number}" for number in range(COUNT)), "train/second", "train/through", "train/out"]
    contents = [*(content(number) for number in range(COUNT)), content(0), content(1), b"beside"]
    names, contents = [*names, "train/absolute"], [*contents, b"beside"]
    with begun(hinted(list(range(len(names))), files=[hfs.path / name for name in names])) as (first, rest):
        status = wait_until(
            hfs, lambda status: layout_of(status).get("outside") == 2 and status["staged"]["files"] == COUNT
        )
        assert counter(status, "hinted_bytes") >= status["source"]["bytes"]
        assert status["source"]["bytes"] == sum(len(content(number)) for number in range(COUNT))
        reads = status["source"]["reads"]
        for index in [first, *rest]:
            assert (hfs.path / names[index]).read_bytes() == contents[index]
    status = hfs.status()
    assert status["source"]["reads"] == reads
    assert (layout_of(status)["missing"], counter(status, "hints_missing")) == (0, 0)
    assert len(re.findall("lead out of SOURCE", hfs.log_text())) == 1, hfs.log_text()


def test_samples_of_a_large_file_that_a_link_names(farm: Path, hfs_mount: HfsMount) -> None:
    """What is staged of it stands under its own name."""
    size, chunk = 1 << 20, 1 << 18
    samples = np.frombuffer(pattern(5, 0, size), np.uint8).reshape(16, size // 16)
    np.save(farm / "objects" / "big.npy", samples)
    (farm / "train" / "big.npy").symlink_to("../objects/big.npy")
    hfs = hfs_mount(farm, chunk_bytes=chunk)
    data = hfs.path / "set" / "big.npy"
    layout = farm.parent / "big.layout"
    must(hfs_command(), "layout", "build", data, "-o", layout)
    with begun(hinted(list(range(16)), layout=str(layout), mount=str(hfs.path))) as (first, rest):
        read = wait_until(hfs, all_staged)["source"]["bytes"]
        through = np.load(data, mmap_mode="r")
        assert all(np.array_equal(through[index], samples[index]) for index in [first, *rest])
        del through
    assert hfs.source_bytes() == read
    assert "objects/big.npy" in must_here("cache", "list", hfs.path / "objects" / "big.npy")


def hint_of(user: User, hfs: Hfs, names: Sequence[str], settled: int) -> str:
    """What `user` is told of a hint that names these, once it is known of so many that they cannot be had."""

    def follow() -> object:
        blob = encode_layout(LayoutFrame(files=b"\0".join(map(os.fsencode, names))))
        learner = HintConnection.join(hfs.socket.name, Join(layout_digest(blob), process="p"), blob)
        learner.send_order(0, np.arange(len(names)))
        client = Client(hfs.socket.name)
        while True:
            hints = client.status()["hints"]
            layout, share = layout_of({"hints": hints}), hints["learners"][0].get("staged_share", 0)
            if layout["missing"] >= settled and round(share * len(names)) >= len(names) - settled:
                return layout["missing"], round(share * len(names))

    return user.told(hfs.socket.parent, follow)


@needs_root
@pytest.mark.parametrize("guarded", [False, True], ids=["mode bits", "the source decides"])
def test_what_a_link_names_is_judged_for_who_hints(
    farm: Path, slow_source: SlowSource, hfs_mount: HfsMount, guarded: bool
) -> None:
    """Not the link, which everybody may read; and the way to it too."""
    if guarded:
        slow = slow_source(farm, "none", "--own-permissions")
        slow.order(f"guard {GROUP} /objects/secret", f"guard {GROUP} /closed")
    (farm / "closed").mkdir()
    for name in ("secret", "large"):
        (farm / "objects" / name).write_bytes(b"secret")
    (farm / "closed" / "link").symlink_to("../objects/6")
    links = {
        "secret": "../objects/secret",
        "by another": "secret",
        "closed": "../closed/link",
        "beside": "../closed/../objects/7",
    }
    for name, target in links.items():
        (farm / "train" / name).symlink_to(target)
    for path, mode in ((farm / "objects" / "secret", 0o640), (farm / "closed", 0o750)):
        os.chown(path, 0, GROUP)
        path.chmod(0o644 | mode if guarded else mode)
    (farm / "closed").chmod(0o755 if guarded else 0o750)
    source = slow.path if guarded else farm
    hfs = hfs_mount(source)
    hfs.expect_warning("names what cannot be had")
    (farm / "train" / "through").symlink_to(f"{hfs.path}/objects/5")
    may = ["set/0", "train/1", "train/through", "objects/2"]
    may_not = ["train/secret", "set/by another", "train/closed", "closed/link", "set/gone"]
    if not guarded:  # where the kernel asks nobody, `..` of a directory that is closed may be gone
        may_not.append("train/beside")
    told = hint_of(NOBODY, hfs, may + may_not, len(may_not))
    assert told == f"({len(may_not)}, {len(may)})"
    listed = must_here("cache", "list", hfs.path)
    staged = sorted(name for name in os.listdir(farm / "objects") if f"objects/{name}" in listed)
    assert staged == ["0", "1", "2", "5"]
    told = hint_of(MEMBER, hfs, [*may, *may_not], 1)
    assert told == f"(1, {len(may + may_not) - 1})"
