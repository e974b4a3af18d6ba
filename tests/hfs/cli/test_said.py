"""What people type wrongly in their first hour, and what they are told: calls of said.txt, all lines, the exit code.

No mount is made here: the table of mounts is made up. `python -m tests.hfs.cli.test_said` writes into said.txt what is
said now: read the difference. Calls that need a mount, or a plain user, are in tests/fuse/test_wrong_usages.py.
"""

import contextlib
import re
import shlex
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hfs.cli import cli, shared
from hfs.cli.hint import hint
from hfs.layouts.layout import Layout
from hfs.layouts.trace import Read, SourceWaits, traced
from hfs.mounting import keeper, mountinfo, preflight

FILE = Path(__file__).with_name("said.txt")
SAID = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", FILE.read_text(), flags=re.MULTILINE)
MOUNTS = """7 1 0:7 / {t}/shm rw - tmpfs tmpfs rw
8 1 0:8 / /mnt/one ro - fuse.hfs hfs#/s ro
9 1 0:9 / /mnt/two ro - fuse.hfs hfs#/s ro"""
UNCLEAR = ("Traceback", "[Errno", "Aborted", "None", "b'", "('", "...\n")
"""What says nothing to people, or to nobody."""


def made(top: Path) -> dict[str, Path]:
    """`{d}`: a folder with data; `{t}`: one with a file, an empty directory `m` and a full one; `{c}`: a cache root."""
    for folder in ("data/images", "t/m", "t/full/x", "cache"):
        (top / folder).mkdir(parents=True)
    (top / "t/file").touch()
    np.save(top / "data/images/0.npy", np.zeros((2, 2, 2), np.float32))
    with h5py.File(top / "data/train.h5", "w") as file:
        file["x"] = np.zeros((2, 2))
    np.savez(top / "data/several.npz", x=np.zeros((2, 2, 2), np.float32), y=np.zeros(3))
    np.savez(top / "data/texts.npz", x=np.array(["a"]))
    (top / "data/words.txt").write_text("x")
    Layout(b"a\0b").save(str(top / "data/plain"))
    reads = [Read(b"images/0.npy", 0, 10, 1000 * number, 71) for number in range(9)]
    traced(reads, str(top / "data"), SourceWaits(9, 1)).save(str(top / "data/trace"))
    return {"d": top / "data", "t": top / "t", "c": top / "cache"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return made(tmp_path_factory.mktemp("wrong").resolve())


def said(call: str, places: dict[str, Path]) -> str:
    """All lines, but for the answer of a call that succeeds, and the exit code."""
    words = shlex.split(call.format(**places))
    real = [mount for mount in mountinfo.read() if mount.fstype != mountinfo.HFS_TYPE]
    table = [*real, *mountinfo.parse(MOUNTS.format(**places))]
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir("."):  # `hfs umount` goes to /
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        patch.setattr(shared.mountinfo, "mounts", lambda: table)
        patch.setattr(keeper, "ours", lambda: iter([]))
        patch.setattr(preflight, "check_device", lambda _: [])  # who may not open it is told that first
        done = CliRunner().invoke({"hfs": cli, "hfs-hint": hint}[words[0]], words[1:], prog_name=words[0])
    lines = (done.stdout if done.exit_code else "") + done.stderr
    for name, place in places.items():
        lines = lines.replace(str(place), f"{{{name}}}")
    return f"{lines}exit code {done.exit_code}\n"


@pytest.mark.parametrize(("call", "lines"), SAID, ids=[call for call, _ in SAID])
def test_it_is_clear_what_is_wrong_and_what_to_do(call: str, lines: str, places: dict[str, Path]) -> None:
    assert said(call, places) == lines
    for part in UNCLEAR:
        assert part not in lines
    assert {path.name for path in places["t"].iterdir()} == {"m", "full", "file"}, "what is refused makes nothing"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as top:
        there = made(Path(top).resolve())
        FILE.write_text("".join(f"$ {call}\n{said(call, there)}" for call, _ in SAID))
