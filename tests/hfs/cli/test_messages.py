"""What people are told: whose mounts are meant, and what stays after Ctrl-C.

No mount is made here: where one matters the table of mounts is made up. What is typed wrongly is in said.txt.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hfs.cli import cli, shared
from hfs.cli import mount as mount_module
from hfs.cli import status as status_module
from hfs.cli.shared import lines_of, sole_mount
from hfs.codecs.converting import Outcome
from hfs.mountd.core.config import KEYS, Config
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.protocol import PathFault, Result
from hfs.mounting import joining, keeper, mountinfo, processes
from hfs.mounting.mountinfo import parse
from hfs.policies.diagnosis.causes import WORTH, Finding
from tests.hfs.cli.running import hfs
from tests.hfs.daemon import FakeCommands

ROOT = Path(__file__).parents[3]
MINE = "2 1 0:2 / /mine ro - fuse.hfs hfs#/s ro,user_id={uid}"
CLOSED = "3 1 0:3 / /closed ro - fuse.hfs hfs#/s ro,user_id=7"
OPEN = "4 1 0:4 / /open ro - fuse.hfs hfs#/s ro,user_id=7,allow_other"


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


# -- whose mounts are meant -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "mounts", "meant"),
    [
        (1000, [CLOSED, MINE, OPEN], "/mine"),
        (1000, [CLOSED, OPEN], "/open"),
        (1000, [CLOSED], "no MOUNT, and no mount of hfs that is yours"),
        (1000, [MINE, MINE.replace("/mine", "/too")], "several mounts: /mine, /too; name one"),
        (0, [CLOSED, MINE], "/mine"),
        (0, [CLOSED, OPEN], "several mounts: /closed, /open; name one"),
    ],
)
def test_the_only_mount_is_ones_own(uid: int, mounts: list[str], meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node that others use too there is always another one."""
    table = parse("\n".join(mounts).format(uid=uid))
    monkeypatch.setattr(shared.os, "geteuid", lambda: uid)
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)
    monkeypatch.setattr(keeper, "of_given_mounts", list)
    try:
        said = sole_mount()
    except ConfigError as error:
        said = str(error)
    assert meant in said


# -- words that are none ----------------------------------------------------------------------------------------------


def test_help_has_no_links_without_an_address() -> None:
    for key in KEYS:
        assert "](" not in key.help
    assert "see docs/sharing.md" in next(key.help for key in KEYS if key.name == "cache")


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("hfs.cli.doctor"), "examine", lambda _around: [])
    monkeypatch.setenv("HFS_CHUNK", "3M")  # so that there is a fault to be coloured
    for setting, coloured in ({}, True), ({"NO_COLOR": "1"}, False):
        done = CliRunner().invoke(cli, ["doctor"], color=True, env=setting)
        assert ("\x1b[" in done.stdout) == coloured


def test_values_are_told_as_they_are_written() -> None:
    config = Config(source="/s", mountpoint="/m", cache="/c", cache_size_bytes=2 << 30, immutable=True, ttl_s=5.0)
    kept: Any = type(
        "Kept", (), {"config": json.loads(joining.dump(Config(source="/s", mountpoint="/m", cache="/c"), {}))["config"]}
    )
    with pytest.raises(ConfigError) as caught:
        joining.Running("/m", "0:5", kept, is_ending=False).check(config, {})
    assert (
        "cache-size: it has all but max(10 %, 10 GB) of the disk, and 2G is asked for; ttl: it has 60, and 5 is asked "
        "for; immutable: it has off, and on is asked for"
    ) in str(caught.value)


def test_no_remedy_names_a_package_that_no_index_has() -> None:
    """Whoever types it may get what somebody else has put there under that name."""
    for folder in ("hfs", "mountd", "policies"):
        for file in sorted(ROOT.joinpath(folder).rglob("*.py")):
            assert "hfs-cache[" not in file.read_text(), file


def test_paths_are_told_as_people_write_them() -> None:
    """Not as b'...', which a path of a daemon is that goes into a text as it is."""
    for file in sorted(ROOT.joinpath("mountd").rglob("*.py")):
        assert "path!r}" not in file.read_text(), file


# -- lists of names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfa\r\nb", [b"a", b"b"]),
        (b"a\r\nb\n", [b"a\r", b"b"]),
        (b"a", [b"a"]),
    ],
)
def test_lists_that_were_written_on_windows(text: bytes, names: list[bytes]) -> None:
    assert lines_of(text) == names


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_a_warm_says_what_stays(daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    from hfs.cli import reporting

    before = reporting.BarReporter.end_part

    def end_part(*arguments: Any) -> None:
        before(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(reporting.BarReporter, "end_part", end_part)
    done = hfs("cache", "warm", f"{daemon.mountpoint}/a")
    assert done.exit_code == 1
    assert done.stderr == (
        "hfs: interrupted: at least 1 file, 10 B, warmed; what is staged stays; the same command goes on from there\n"
    )


@pytest.mark.parametrize("is_there", [False, True])
def test_a_mount_says_whether_it_is_there(is_there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path.resolve() / "m"
    table = parse(f"2 1 0:2 / {place} ro - fuse.hfs hfs#/s ro") if is_there else []
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)
    monkeypatch.setattr(mount_module, "without_stale", interrupt)
    done = hfs("mount", "/s", place, "--cache", tmp_path / "c")
    assert done.exit_code == 1
    said = f"{place} is mounted; hfs umount" if is_there else f"nothing is mounted at {place}; what is staged stays"
    assert done.stderr.startswith(f"hfs: interrupted: {said}")


def test_encoding_goes_on_where_it_was_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in "abc":
        np.save(f"in/{name}.npy", np.arange(8, dtype=np.float32).reshape(2, 2, 2))
    module: Any = importlib.import_module("hfs.cli.encode")
    work = module.in_processes

    def ended(*arguments: Any) -> Iterator[Outcome]:
        yield next(work(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "in_processes", ended)
    done = hfs("encode", "in", "out", "--jobs", "1")
    assert done.exit_code == 1
    assert (
        "interrupted: at least 1 of 3 samples encoded, which stay; the same command with --continue goes on"
        in done.stderr
    )
    monkeypatch.setattr(module, "in_processes", work)
    assert "--overwrite, or --continue to make only what is missing" in hfs("encode", "in", "out").stderr
    done = hfs("encode", "in", "out", "--jobs", "1", "--continue")
    assert (done.exit_code, "2 samples to encode" in done.stderr) == (0, True)
    assert len(list(Path("out").iterdir())) == 3
    assert hfs("decode", "out", "back", "--jobs", "1").exit_code == 0
    Path("back/b.npy").unlink()
    assert "1 file to decode" in hfs("decode", "out", "back", "--continue").stderr


def test_a_watch_in_a_pipe_ends_with_one_ctrl_c(daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module.time, "sleep", interrupt)
    done = hfs("status", "--watch")
    assert (done.exit_code, done.stdout) == (0, hfs("status", daemon.mountpoint).stdout + "\n")


# -- what failed ------------------------------------------------------------------------------------------------------


def test_a_full_cache_is_told_once_and_not_for_each_path(capsys: pytest.CaptureFixture[str]) -> None:
    from hfs.cli.reporting import BarReporter

    with BarReporter("warmed") as reporter:
        full = [PathFault(b"f%d" % number, "cache-size reached", of_cache=True) for number in range(30)]
        gone = [PathFault(b"g%d" % number, "no such file") for number in range(3)]
        reporter.end_part(Result(files=5, failed=33, faults=[*full, *gone]), lambda path: path.decode())
        reporter.close()
    assert capsys.readouterr().err.splitlines() == [
        "hfs: f0: cache-size reached",
        *(f"hfs: g{number}: no such file" for number in range(3)),
        "hfs: ... and 29 more",
    ]


@pytest.mark.parametrize(
    ("missing", "share", "waits", "code"),
    [(3, 0.0, True, 1), (1, 0.6667, True, 3), (1, 0.6667, False, None)],
)
def test_files_of_a_hint_that_cannot_be_had(
    missing: int,
    share: float,
    waits: bool,
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At once, and not after a minute without progress."""
    module: Any = importlib.import_module("hfs.cli.hint")
    join: Any = SimpleNamespace(layout="d", job="j", rank=0, name="n")
    learner = {"job": "j", "rank": 0, "name": "n", "staged_share": share}
    hints = {"layouts": [{"digest": "d", "files": 3, "missing": missing}], "learners": [learner]}
    target: Any = SimpleNamespace(mountpoint="/data", client=SimpleNamespace(status=lambda: {"hints": hints}))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) > 20:
            raise TimeoutError

    monkeypatch.setattr(module.time, "sleep", sleep)
    connection: Any = SimpleNamespace(usable=lambda: True)
    with contextlib.nullcontext() if waits else pytest.raises(TimeoutError):
        assert module._stay(target, connection, join, until_staged=waits) == code
        assert len(looks) == 1
    assert capsys.readouterr().err.count(f"{missing} of 3 files cannot be had; names in a list are relative to /d") == 1


def test_a_child_that_still_sees_the_mount_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def mounts(process: int | str = "self") -> list[mountinfo.Mount]:
        if process != str(os.getpid()):
            raise ProcessLookupError
        return parse("2 1 0:99 / /data ro - fuse.hfs hfs#/s ro")

    monkeypatch.setattr(processes.mountinfo, "mounts", mounts)
    (user,) = processes.seeing("0:99")
    assert str(user).startswith(f"process {os.getpid()} (")
    assert processes.seeing("0:98") == []


def test_why_tells_a_share_of_the_time_where_it_was_measured(
    daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("hfs.policies.diagnosis.causes")
    causes = [Finding(f"cause {cost}", cost, f"cause {cost}", "seen", "change") for cost in (1.0, 0.4, WORTH)]
    monkeypatch.setattr(module, "found", lambda _situation: causes)
    said = [line for line in hfs("why", "--all").stdout.splitlines() if line.startswith("cause")]
    assert said == ["cause 1.0", "cause 0.4 (about 40% of the time)", f"cause {WORTH}"]
