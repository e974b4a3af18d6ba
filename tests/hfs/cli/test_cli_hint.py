"""`hfs-hint` and `hfs layout` against the real control socket and the daemon's own book of learners; no mount."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from hfs.cli import hint
from hfs.cli.learners import epochs_table, learners_table
from hfs.client.client import Client
from hfs.layouts.layout import Layout
from hfs.mountd.wire.protocol import Touch, Touches
from tests.hfs.cli.running import hfs
from tests.hfs.cli.running import hint as run
from tests.hfs.daemon import FakeCommands


@pytest.fixture(autouse=True)
def _place(daemon: FakeCommands) -> None:
    """An ordinary directory lies where the command line sees the mount."""
    Path(daemon.mountpoint).mkdir()


@pytest.fixture
def stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: FakeCommands) -> list[dict[str, Any]]:
    """What the daemon's status says each time that `send` looks how it goes; the second time Ctrl-C comes."""
    seen: list[dict[str, Any]] = []
    path = str(tmp_path / "s")

    def sleep(_seconds: float) -> None:
        seen.append(Client(path).status()["hints"])
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(hint.time, "sleep", sleep)
    return seen


def order_file(tmp_path: Path, values: Any) -> Path:
    np.save(tmp_path / "order.npy", np.asarray(values))
    return tmp_path / "order.npy"


def list_file(tmp_path: Path, text: str) -> Path:
    (tmp_path / "list").write_text(text)
    return tmp_path / "list"


def test_send_stays_until_it_is_ended(tmp_path: Path, daemon: FakeCommands, stays: list[dict[str, Any]]) -> None:
    files = list_file(tmp_path, f"{daemon.mountpoint}/a\nb/c\nd\n")
    order = order_file(tmp_path, [2, 0, 0, 1])
    options = ("--epoch", "3", "--rank", "1", "--world", "2", "--name", "train")
    result = run("send", "--mount", daemon.mountpoint, "--order", order, "--files", files, *options)
    assert (result.exit_code, result.stderr) == (0, "4 samples of epoch 3 are known to the daemon\n")
    learner = stays[0]["learners"][0]
    assert [learner[key] for key in ("name", "rank", "world", "epoch", "samples", "total")] == ["train", 1, 2, 3, 3, 4]
    assert stays[0]["layouts"][0]["files"] == 3


def test_send_without_files_that_are_elsewhere(
    tmp_path: Path, daemon: FakeCommands, stays: list[dict[str, Any]]
) -> None:
    files = list_file(tmp_path, f"{daemon.mountpoint}/a\n/elsewhere\nb\n")
    result = run("send", "--order", order_file(tmp_path, [0, 1, 2, 1]), "--files", files)
    assert "1 of 3 files are not below" in result.stderr
    assert "the first is number 1: /elsewhere" in result.stderr
    assert stays[0]["learners"][0]["total"] == 2
    result = run("send", "--order", order_file(tmp_path, [1]), "--files", files)
    assert result.exit_code == 2
    assert "only files that are not below" in result.stderr
    result = run("send", "--order", order_file(tmp_path, [0]), "--files", list_file(tmp_path, "/x"))
    assert (result.exit_code, "no file of the list is below" in result.stderr) == (2, True)


def test_send_until_all_is_staged(tmp_path: Path, daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.0, 0.5, 1.0])
    monkeypatch.setattr(hint.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(hint, "_staged_share", lambda _hints, _join: next(shares))
    files = list_file(tmp_path, "a\nb\n")
    sending = ("send", "--order", order_file(tmp_path, [1, 0]), "--files", files, "--until-staged")
    assert run(*sending).exit_code == 0
    monkeypatch.setattr(hint, "_staged_share", lambda _hints, _join: 0.25)
    monkeypatch.setattr(hint, "_STUCK_S", 0.0)
    result = run(*sending)
    assert (result.exit_code, "25.0% is staged" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([0, 3], "1 of 2 indices are out of range, the first is 3 at 1; there are 3 samples (0 to 2)"),
        ([0, -1, 7], "2 of 3 indices are out of range, the first is -1 at 1"),
        ([0.0, 1.0], "its values are float64; an order is integers"),
        ([0.0, float("nan")], "float64, the one at 1 is NaN"),
        ([[0, 1]], "an array of shape (1, 2)"),
        (np.empty(0, int), "is not empty"),
        ([True], "its values are bool"),
        ([2**63], "out of range"),
        (["a"], "its values are <U1"),
    ],
)
def test_orders_that_cannot_be(tmp_path: Path, daemon: FakeCommands, values: Any, fault: str) -> None:
    order = order_file(tmp_path, values)
    result = run("send", "--order", order, "--files", list_file(tmp_path, "a\nb\nc\n"))
    assert result.exit_code == 2
    assert str(order) in result.stderr
    assert fault in result.stderr
    assert not len(daemon.learners)


def test_other_bad_input(tmp_path: Path, daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    files, order = list_file(tmp_path, "a\nb\n"), order_file(tmp_path, [0, 1])

    def fault(*arguments: str | Path) -> str:
        result = run(*arguments)
        assert result.exit_code == 2
        return result.stderr

    assert "give either --files or --layout" in fault("send", "--order", order)
    assert "give both" in fault("send", "--order", order, "--files", files, "--rank", "1")
    assert "0 <= R < W" in fault("send", "--order", order, "--files", files, "--rank", "2", "--world", "2")
    assert "No such file" in fault("send", "--order", tmp_path / "no", "--files", files)
    assert "No such file" in fault("send", "--order", order, "--files", tmp_path / "no")
    assert "no such file" in fault("send", "--order", order, "--layout", tmp_path / "no")
    assert "no such file" in fault("replay", tmp_path / "no")
    assert "not in a mount" in fault("send", "--mount", tmp_path, "--order", order, "--files", files)
    assert "line 2 is empty" in fault("send", "--order", order, "--files", list_file(tmp_path, "a\n\nb\n"))
    assert "line 2 has a zero byte" in fault("send", "--order", order, "--files", list_file(tmp_path, "a\nb\0\n"))
    list_file(tmp_path, "a\nb\n")
    whole = order.read_bytes()
    for size in (0, 5, len(whole) - 1):
        order.write_bytes(whole[:size])
        assert "not a .npy file, or cut short" in fault("send", "--order", order, "--files", files)
    np.save(order, np.array([{}]), allow_pickle=True)
    assert "not a .npy file" in fault("send", "--order", order, "--files", files)
    monkeypatch.setattr("hfs.cli.hint_input.MAX_ORDER_SAMPLES", 1)
    assert "2 indices, at most 1" in fault(
        "send", "--order", order_file(tmp_path, [0, 1]), "--files", list_file(tmp_path, "a\nb\n")
    )
    Layout(b"a").save(str(tmp_path / "t"))
    trace = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(trace[:-30])
    assert "cut short" in fault("replay", tmp_path / "t")


def test_record_and_replay(tmp_path: Path, daemon: FakeCommands, stays: list[dict[str, Any]]) -> None:
    mount = Path(daemon.mountpoint)
    (mount / "a").write_bytes(b"x" * 10)
    (mount / "d").mkdir()
    (mount / "d" / "b").write_bytes(b"x" * 100)
    daemon.touches = [
        Touches([Touch(b"d/b", 0, 50, 1), Touch(b"d/b", 50, 20, 2), Touch(b"a", 0, 10, 3)]),
        Touches([Touch(b"d/b", 20, 30, 4), Touch(b"a", 10, 90, 5)]),  # the last lies beyond the end
    ]
    trace = tmp_path / "trace"
    result = run("record", "-o", trace, "--", "true")
    assert (result.exit_code, "3 reads of 2 files" in result.stderr) == (0, True)
    layout = Layout.load(str(trace))
    assert layout.files == [b"d/b", b"a"]
    rows = zip(layout.extents.tolist(), layout.offsets.tolist(), layout.sizes.tolist(), strict=True)
    assert list(rows) == [(0, 0, 70), (1, 0, 10), (0, 20, 30)]

    assert run("replay", trace).exit_code == 0
    assert stays[0]["learners"][0]["total"] == 3
    result = run("replay", trace, "--warm")
    assert result.exit_code == 0
    assert daemon.calls[-1] == ("warm", [b"d/b", b"a"], 0)
    (mount / "a").write_bytes(b"x" * 11)
    result = run("replay", trace)
    assert (result.exit_code, "1 of 2 files are not as they were" in result.stderr) == (2, True)


def test_record_ends_as_its_command_does(tmp_path: Path, daemon: FakeCommands) -> None:
    trace = tmp_path / "trace"
    result = run("record", "-o", trace, "--", "false")
    assert (result.exit_code, "nothing was read" in result.stderr, trace.exists()) == (1, True, False)
    assert run("record", "-o", trace, "--", tmp_path / "none").exit_code == 127
    assert run("record", "-o", trace, "--", tmp_path).exit_code == 126
    (Path(daemon.mountpoint) / "a").write_bytes(b"x")
    daemon.touches = [Touches([Touch(b"a", 0, 1, 1)], lost=7)]
    result = run("record", "-o", trace, "--", "true")
    assert (result.exit_code, "7 reads came faster" in result.stderr, trace.exists()) == (3, True, True)
    assert run("record", "-o", trace, "--", "sh", "-c", "kill -9 $$").exit_code == 128 + 9


HINTS = {
    "learners": [
        {
            "name": "train",
            "job": "j",
            "rank": 1,
            "world": 2,
            "pid": 77,
            "layout": "f" * 32,
            "samples": 10,
            "epoch": 3,
            "position": 4,
            "total": 1280,
            "rate": 123.4,
            "staged_share": 0.5,
            "ahead_bytes": 5_000_000,
            "eta_s": 90.0,
            "epochs": [
                {
                    "epoch": 2,
                    "exposed_s": 1.5,
                    "compute_s": 30.0,
                    "other_s": 2.0,
                    "batches": 40,
                    "source_wait_s": 3.0,
                    "daemon_cpu_s": 11.0,
                },
                {"epoch": 3, "exposed_s": 0, "compute_s": 0, "other_s": 0, "batches": 0, "source_wait_s": 0.25},
            ],
        },
        {"name": "", "rank": 0, "world": 1, "epochs": [], "epoch": None},
    ],
    "past": [],
    "layouts": [],
}


def test_show_and_status(tmp_path: Path, daemon: FakeCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("show").stdout == "no hints\n"
    monkeypatch.setattr(daemon.learners, "status", AsyncMock(return_value=HINTS))
    assert json.loads(run("show", "--json").stdout) == HINTS
    words = " ".join(run("show").stdout.split())
    assert "train, rank 1 of 2 77 3 4 of 1,280 123 50.0% 5.00 MB 1 min 30 s" in words
    assert "learner, rank 0 of 1 - - - - - - -" in words
    assert "train, rank 1 of 2 2 1.5 30 2 4.5% 40 3 11" in words
    assert "train, rank 1 of 2 3 - - - - - 0.25 -" in words
    status = hfs("status", "--all", daemon.mountpoint)
    assert "train, rank 1 of 2 2 1.5 30 2" in " ".join(status.stdout.split())
    assert "hints" not in status.stdout
    assert "*:" not in words
    learner = {**HINTS["learners"][0], "only_given": True}
    monkeypatch.setattr(daemon.learners, "status", AsyncMock(return_value={**HINTS, "learners": [learner]}))
    words = " ".join(run("show").stdout.split())
    assert "train, rank 1 of 2 77 3 4 * 123 50.0% 5.00 MB -" in words
    assert (
        "*: what its sampler will give out is not known, only what was given out is told; hinted(..., ahead=True)"
        in words
    )
    assert learners_table({}) is None
    many = {"past": [{"epochs": [{"epoch": i, "batches": 0} for i in range(50)]}]}
    table = epochs_table(many)
    assert table is not None
    assert (table.row_count, table.caption) == (20, "30 earlier ones: --json")
