"""`hfs cache` and `hfs refresh` without a mount: what the daemon is asked, what is shown, exit codes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from hfs.cli import shared
from hfs.mountd.core.errors import HfsError
from tests.hfs.cli.running import hfs
from tests.hfs.daemon import FakeCommands


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_warm(daemon: FakeCommands) -> None:
    result = hfs("cache", "warm", "-j", "3", daemon.mountpoint, f"{daemon.mountpoint}/d/./b")
    assert result.exit_code == 0
    assert "warmed 3 files, 50 B, in " in result.stdout
    assert daemon.calls == [("warm", [b"", b"d/b"], 3)]


def test_warm_and_pin(daemon: FakeCommands) -> None:
    result = hfs("cache", "warm", "--pin", daemon.mountpoint)
    assert result.exit_code == 0
    assert daemon.calls == [("warm", [b""], 0, "pinned")]
    assert "; 2 pinned" in result.stdout
    assert lines(hfs("cache", "warm", "--pin", "--json", daemon.mountpoint))[-1]["pinned_files"] == 2


def test_unpin(daemon: FakeCommands) -> None:
    result = hfs("cache", "unpin", f"{daemon.mountpoint}/d")
    assert (result.exit_code, result.stdout.startswith("unpinned 2 files, 30 B, in ")) == (0, True)
    assert hfs("cache", "unpin", "--all", daemon.mountpoint).exit_code == 0
    assert daemon.calls == [("unpin", [b"d"]), ("unpin", [])]


def test_a_warm_that_does_not_fit_says_so_at_once(daemon: FakeCommands) -> None:
    daemon.room = 143_000_000_000, 120_000_000_000
    result = hfs("cache", "warm", f"{daemon.mountpoint}/a", f"{daemon.mountpoint}/d/b")
    assert result.stderr.count("needs 143 GB, 120 GB fit: stops at 84%") == 1
    assert lines(hfs("cache", "warm", "--json", daemon.mountpoint))[0]["room_bytes"] == 143_000_000_000


def test_a_dry_run_says_how_long(daemon: FakeCommands) -> None:
    daemon.seconds = 287.0
    assert (
        "needs 3.00 MB, all of it fits, about 4 min 50 s" in hfs("cache", "warm", "--dry-run", daemon.mountpoint).stdout
    )
    assert json.loads(hfs("cache", "warm", "--dry-run", "--json", daemon.mountpoint).stdout)["seconds"] == 287.0
    daemon.seconds = None
    assert "about" not in hfs("cache", "warm", "--dry-run", daemon.mountpoint).stdout


def test_refresh(daemon: FakeCommands) -> None:
    result = hfs("refresh", f"{daemon.mountpoint}/d", daemon.mountpoint)
    assert (result.exit_code, result.stdout) == (0, "14 names are looked up anew\n")
    assert daemon.calls == [("refresh", [b"d", b""])]
    partly = hfs("refresh", f"{daemon.mountpoint}/bad", f"{daemon.mountpoint}/d")
    assert partly.exit_code == 3
    assert f"{daemon.mountpoint}/bad: the index failed" in partly.stderr
    assert lines(hfs("refresh", "--json", daemon.mountpoint)) == [
        {"mountpoint": daemon.mountpoint, "names": 7, "failed": 0}
    ]
    assert hfs("refresh").exit_code == 2
    assert hfs("refresh", "/elsewhere").exit_code == 2


def test_warm_partly_and_not_at_all(daemon: FakeCommands) -> None:
    result = hfs("cache", "warm", f"{daemon.mountpoint}/bad1", daemon.mountpoint)
    assert result.exit_code == 3
    assert f"hfs: {daemon.mountpoint}/bad1: no such file" in result.stderr
    assert "1 failed" in result.stdout
    result = hfs("cache", "warm", *(f"{daemon.mountpoint}/bad{n}" for n in range(25)))
    assert result.exit_code == 1
    assert "hfs: ... and 5 more" in result.stderr
    assert result.stderr.count("no such file") == 20


def test_warm_as_json(daemon: FakeCommands) -> None:
    daemon.opened = {b"a"}
    found = lines(hfs("cache", "warm", "--json", daemon.mountpoint, f"{daemon.mountpoint}/bad"))
    assert [line["final"] for line in found] == [*[False] * (len(found) - 1), True]
    last = found[-1]
    assert (last["files"], last["bytes"], last["failed"], last["skipped"], last["files_total"]) == (2, 30, 1, 1, 3)
    faults = [fault for line in found for fault in line["faults"]]
    assert faults == [{"path": f"{daemon.mountpoint}/bad", "message": "no such file"}]


def test_warm_from_a_list(daemon: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list").write_bytes(b"a\n\nd/b\nbad \xe9\n" + os.fsencode(daemon.mountpoint) + b"/a")
    assert hfs("cache", "warm", "--files-from", tmp_path / "list", daemon.mountpoint).exit_code == 3
    assert daemon.calls.pop() == ("warm", [b"a", b"d/b", b"bad \xe9", b"a"], 0)
    assert hfs("cache", "warm", "-0", "--files-from", "-", daemon.mountpoint, stdin=b"a\0b\nc\0").exit_code == 0
    assert daemon.calls.pop() == ("warm", [b"a", b"b\nc"], 0)
    monkeypatch.chdir(tmp_path)
    assert hfs("cache", "warm", "--files-from", "-", stdin="m/a\n").exit_code == 0
    assert daemon.calls.pop() == ("warm", [b"a"], 0)
    assert "not in a mount of hfs" in hfs("cache", "warm", "--files-from", "-", stdin="x\n").stderr
    assert "no PATH" in hfs("cache", "warm", "--files-from", "-", stdin="").stderr


def test_long_lists_are_sent_in_parts(daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfs.cli.cache._REQUEST_BYTES", 20)
    result = hfs("cache", "warm", "--json", *[f"{daemon.mountpoint}/a"] * 5, f"{daemon.mountpoint}/bad")
    assert [call[1] for call in daemon.calls] == [[b"a", b"a"], [b"a", b"a"], [b"a", b"bad"]]
    last = lines(result)[-1]
    assert (last["files"], last["bytes"], last["failed"], last["files_total"]) == (5, 50, 1, 6)


def test_control_names_the_mount(daemon: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.mountinfo, "mounts", list)
    arguments = ["--control", tmp_path / "s"]
    assert hfs("cache", "warm", f"{daemon.mountpoint}/a", *arguments).exit_code == 0
    assert hfs("cache", "check", *arguments).exit_code == 0
    assert hfs("cache", "evict", "--all", *arguments).exit_code == 0
    assert daemon.calls == [("warm", [b"a"], 0), ("check", [], False), ("evict", [], True)]
    assert hfs("cache", "warm", "/elsewhere", *arguments).exit_code == 2


def test_check(daemon: FakeCommands) -> None:
    assert hfs("cache", "check", daemon.mountpoint).stdout.startswith("checked 2 files, 30 B")
    assert hfs("cache", "check", f"{daemon.mountpoint}/a", "--against-source").exit_code == 0
    assert daemon.calls == [("check", [], False), ("check", [b"a"], True)]
    result = hfs("cache", "check", f"{daemon.mountpoint}/usage")
    assert (result.exit_code, result.stderr) == (2, "hfs: usage: no such thing\n")


def test_evict(daemon: FakeCommands) -> None:
    assert hfs("cache", "evict", f"{daemon.mountpoint}/a").exit_code == 0
    assert hfs("cache", "evict", "--all", f"{daemon.mountpoint}/a").exit_code == 0
    assert daemon.calls == [("evict", [b"a"], False), ("evict", [], True)]
    daemon.opened = {b"a"}
    result = hfs("cache", "evict", "--all", daemon.mountpoint)
    assert result.exit_code == 3
    assert "1 open, so they stay" in result.stdout


def test_list(daemon: FakeCommands) -> None:
    text = hfs("cache", "list", daemon.mountpoint).stdout.splitlines()
    assert [line.split() for line in text] == [
        ["10", "10", "complete", f"{daemon.mountpoint}/a"],
        ["20", "20", "complete", f"{daemon.mountpoint}/d/b"],
        ["25", "100", "25%", "[s:9]"],
        ["55", "bytes", "staged", "of", "3", "files,", "2", "complete"],
    ]
    found = lines(hfs("cache", "list", "--json", f"{daemon.mountpoint}/a"))
    assert found[0]["path"] == f"{daemon.mountpoint}/a"
    assert found[-1] == {"final": True, "files": 3, "staged_bytes": 55, "complete": 2, "pinned": 0}
    assert daemon.calls == [("list", []), ("list", [b"a"])]


def test_a_daemon_that_fails_amid_the_work(daemon: FakeCommands) -> None:
    def die() -> None:
        raise HfsError("the disk is gone")

    daemon.on_warm = die
    result = hfs("cache", "warm", daemon.mountpoint)
    assert (result.exit_code, result.stderr) == (1, "hfs: the disk is gone\n")


def test_no_age_at_all_is_an_age_and_spares_what_is_pinned(daemon: FakeCommands) -> None:
    assert hfs("cache", "evict", "--older-than", "0", daemon.mountpoint).exit_code == 0
    (call,) = daemon.calls
    assert call[0] == "evict"
    assert 0 < call[-1] < 1
