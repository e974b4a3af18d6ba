"""What is typed wrongly is told clearly: the rows of tests/support/wrong_usages.py.

No mount is made here: where one matters the table of mounts is made up. Rows that need one, or a plain user, are in
tests/fuse/test_wrong_usages.py.
"""

import contextlib
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hfs.cli import cli, shared
from hfs.cli.hint import hint
from hfs.mounting import keeper, preflight
from hfs.mounting.mountinfo import parse
from tests.support.wrong_usages import ROWS, Row, look

MOUNTS = """7 1 0:7 / {t}/shm rw - tmpfs tmpfs rw
8 1 0:8 / /mnt/one ro - fuse.hfs hfs#/s ro
9 1 0:9 / /mnt/two ro - fuse.hfs hfs#/s ro"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """As `Row` has them."""
    top = tmp_path_factory.mktemp("wrong").resolve()
    for folder in ("data/images", "t/m", "t/full/x", "cache"):
        (top / folder).mkdir(parents=True)
    (top / "t/file").touch()
    np.save(top / "data/images/0.npy", np.zeros((2, 2, 2), np.float32))
    with h5py.File(top / "data/train.h5", "w") as file:
        file["x"] = np.zeros((2, 2))
    return {"d": top / "data", "t": top / "t", "c": top / "cache"}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.mounts and not row.by_plain_user], ids=lambda row: row.typed
)
def test_it_is_clear_what_is_wrong_and_what_to_do(
    row: Row, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(row.typed.format(**places))
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    program = {"hfs": cli, "hfs-hint": hint}[words[0]]
    table = [*shared.mountinfo.mounts(), *parse(MOUNTS.format(**places))]
    monkeypatch.setattr(shared.mountinfo, "mounts", lambda: table)
    monkeypatch.setattr(keeper, "ours", lambda: iter([]))
    monkeypatch.setattr(preflight, "check_device", lambda _: [])  # who may not open it is told that first
    with contextlib.chdir("."):  # `hfs umount` goes to /
        done = CliRunner().invoke(program, words[1:], prog_name=words[0])
    look(row, done.exit_code, done.stderr, places)
    assert {path.name for path in places["t"].iterdir()} == {"m", "full", "file"}, "what is refused makes nothing"


def test_all_of_them_are_here() -> None:
    assert len(ROWS) == 62
