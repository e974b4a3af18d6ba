"""Calls that cannot be done where there is a mount, or by a plain user; others are in tests/hfs/cli/said.txt."""

import os
import tempfile
from pathlib import Path

from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import HfsMount, hfs_command, run


def test_what_is_wrong_and_what_to_do(hfs_mount: HfsMount, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.h5").write_bytes(bytes(100))
    hfs = hfs_mount(data)
    for command, code, said in (
        ("nosuch", 127, "not found (No such file or directory); give the path of a program"),
        (data / "train.h5", 126, "cannot be executed (Permission denied); chmod +x, or give what runs"),
    ):
        done = run(hfs_command(), "run", *hfs.options, "--source", data, "--cache", hfs.cache, "--", command)
        assert done.returncode == code
        assert f"hfs: {command}: {said}" in done.stderr


def test_what_a_plain_user_may_not() -> None:
    """In a folder that he may enter, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        data, place, others, device = (Path(folder) / name for name in ("d", "m", "o", "device"))
        for path in (data, place, others, device):
            path.mkdir()
        others.chmod(0o555)
        if os.geteuid() == 0:
            os.chown(place, UID, UID)
        own = ("env", f"HOME={folder}", f"HFS_LOG_FILE={place}/log")
        done = run(*as_plain_user(str(device)), *own, hfs_command(), "mount", data, place, "--cache", others / "hfs")
        why = f"cache {others}/hfs: cannot be made (Permission denied); give a directory that you can write to"
        assert (done.returncode, done.stderr) == (1, f"hfs: {why}\n")
