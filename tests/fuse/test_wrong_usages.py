"""The rows of tests/support/wrong_usages.py that need a mount, on one that is there, or a plain user."""

import os
import shlex
import tempfile
from pathlib import Path

from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import HfsMount, hfs_command, run
from tests.support.wrong_usages import ROWS, look


def test_what_is_wrong_and_what_to_do(hfs_mount: HfsMount, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.h5").write_bytes(bytes(100))
    hfs = hfs_mount(tmp_path / "data")
    places = {"d": tmp_path / "data", "t": tmp_path / "t", "c": hfs.cache}
    for row in ROWS:
        if row.mounts:
            words = shlex.split(row.typed.format(**places))[1:]
            done = run(hfs_command(), words[0], *hfs.options, *words[1:])
            look(row, done.returncode, done.stderr, places)


def test_what_a_plain_user_may_not() -> None:
    """In a folder that he may enter, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        places = {name: Path(folder) / name for name in ("d", "t", "o")}
        for place in (*places.values(), places["t"] / "m", Path(folder) / "device"):
            place.mkdir()
        places["o"].chmod(0o555)
        if os.geteuid() == 0:
            os.chown(places["t"] / "m", UID, UID)
        for row in ROWS:
            if row.by_plain_user:
                words = shlex.split(row.typed.format(**places))[1:]
                own = ("env", f"HOME={folder}", f"HFS_LOG_FILE={folder}/t/m/log")
                done = run(*as_plain_user(f"{folder}/device"), *own, hfs_command(), *words)
                look(row, done.returncode, done.stderr, places)
