"""The rows of tests/support/wrong_usages.py that need a mount, on one that is there."""

import shlex
from collections.abc import Callable
from pathlib import Path

from tests.fuse.harness import Hfs, hfs_command, run
from tests.support.wrong_usages import ROWS, look


def test_what_is_wrong_and_what_to_do(hfs_mount: Callable[..., Hfs], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.h5").write_bytes(bytes(100))
    hfs = hfs_mount(tmp_path / "data")
    places = {"d": tmp_path / "data", "t": tmp_path / "t", "c": hfs.cache}
    for row in ROWS:
        if row.mounts:
            words = shlex.split(row.typed.format(**places))[1:]
            done = run(hfs_command(), words[0], *hfs.options, *words[1:])
            look(row, done.returncode, done.stderr, places)
