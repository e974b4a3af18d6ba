"""`hfs layout build | show | check` as people use them: formats by themselves, options, shards, exit codes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hfs.layouts.layout import Layout
from hfs.mounting import mountinfo
from tests.hfs.cli.running import hfs
from tests.hfs.layouts.layout_cases import CASES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(format_name: str, name: str, sizes: list[int]) -> None:
    next(case for case in CASES if case.format == format_name).write(Path(name), sizes)


def test_build_show_check() -> None:
    write("tar", "a.tar", [10, 0, 5000])
    write("tar", "b.tar", [7])
    os.utime("b.tar", ns=(5, 1_700_000_000_000_000_005))
    made = hfs("layout", "build", "a.tar", "b.tar", "--root", ".", "--keys", "-o", "x.layout")
    assert (made.exit_code, made.stdout) == (0, "x.layout: 4 samples of 2 files (tar)\n")
    shown = hfs("layout", "show", "x.layout")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["made", "from", "tar"] in lines
    assert ["samples", "4,", "with", "their", "keys"] in lines
    assert ["extents", "7"] in lines
    assert "sample 1  a.tar: 1 bytes at " in shown.stdout
    assert f"b.tar: {os.path.getsize('b.tar'):,} bytes, modified 2023-11-14T22:13:20.000000005 UTC\n" in shown.stdout
    checked = hfs("layout", "check", "x.layout")
    assert (checked.exit_code, checked.stdout) == (
        0,
        "x.layout: right: 2 files as they were, 4 samples\n",
    )
    record = json.loads(hfs("layout", "show", "x.layout", "--json").stdout)
    assert (record["samples"], record["files"], record["made_from"], record["keys"]) == (4, 2, "tar", True)
    assert record["ends"][-1]["extents"][-1]["file"] == "b.tar"
    assert record == json.loads(
        hfs("layout", "build", "a.tar", "b.tar", "--root", ".", "--keys", "-o", "x.layout", "--json").stdout
    ) | {"ends": record["ends"]}
    assert json.loads(hfs("layout", "check", "x.layout", "--json").stdout)["right"] is True
    os.utime("b.tar")
    os.unlink("a.tar")
    checked = hfs("layout", "check", "x.layout", "--root", ".", "--json")
    assert checked.exit_code == 1
    assert len(json.loads(checked.stdout)["faults"]) == 2
    checked = hfs("layout", "check", "x.layout", "--root", ".")
    assert (checked.exit_code, checked.stdout) == (1, "")
    assert checked.stderr.splitlines() == [
        "hfs: ./a.tar: No such file or directory",
        "hfs: ./b.tar: changed since the layout was made",
        "hfs: x.layout: 2 faults: it does not belong to these files; build it again",
    ]


def test_files_of_a_tree_and_files_that_are_none(folder: Path) -> None:
    write("tree", "t", [5, 0, 7])
    assert hfs("layout", "build", "t/", "--root", folder).stdout == "t.layout: 3 samples of 3 files (tree)\n"
    shown = hfs("layout", "show", "t.layout").stdout
    assert "extents    none: a sample is a whole file" in shown
    assert "sample 0  t/a/0001.bin: 0 bytes\n" in shown
    assert hfs("layout", "check", "t.layout").stdout == "t.layout: right: 3 files as they were, 3 samples\n"
    Layout(b"\xff\n").save("odd")
    assert "\\xff" in hfs("layout", "show", "odd").stdout or "\\udcff" in hfs("layout", "show", "odd").stdout
    np.save("x.npy", np.zeros(3))
    for command in ("show", "check"):
        result = hfs("layout", command, "x.npy")
        assert (result.exit_code, result.stderr.startswith("hfs: x.npy: not a layout, or cut short")) == (1, True)
    assert hfs("layout", "show", "none").stderr == "hfs: none: no such file; hfs layout build makes one\n"


def test_check_finds_the_files_in_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("x.npy", np.zeros((3, 4)))
    assert hfs("layout", "build", "x.npy", "--root", ".", "-o", "x.layout").exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    os.rename("x.npy", tmp_path / "elsewhere" / "x.npy")
    lost = hfs("layout", "check", "x.layout")
    assert (lost.exit_code, lost.stdout) == (2, "")
    assert "say with --root where it is" in lost.stderr
    mount = mountinfo.Mount(1, "0:1", str(tmp_path / "elsewhere"), "ro", mountinfo.HFS_TYPE, "hfs")
    monkeypatch.setattr(mountinfo, "hfs_mounts", lambda: [mount])
    assert hfs("layout", "check", "x.layout").stdout == "x.layout: right: 1 file as it was, 3 samples\n"
