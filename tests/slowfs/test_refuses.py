"""What the simulated file system refuses: all that would write, and what a guard keeps from a user."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.slowfs.mounted import Mount


@pytest.mark.fuse
def test_what_would_write_is_refused_and_counted(mount: Callable[..., Mount], tmp_path: Path) -> None:
    (tmp_path / "backing/f").write_bytes(b"bytes")
    slow = mount()
    assert (slow.path / "f").read_bytes() == b"bytes"
    assert slow.state()["writes"] == 0
    for write in (
        lambda: (slow.path / "f").open("ab").close(),
        lambda: os.utime(slow.path / "f"),
        lambda: (slow.path / "new").mkdir(),
        lambda: (slow.path / "f").unlink(),
        lambda: os.setxattr(slow.path / "f", "user.x", b"y"),
    ):
        before = slow.state()["writes"]
        with pytest.raises(OSError, match="Read-only file system"):
            write()
        assert slow.state()["writes"] == before + 1
    slow.tell("reset")
    assert slow.state()["writes"] == 0


@pytest.mark.fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_server_with_permissions_of_its_own(mount: Callable[..., Mount], tmp_path: Path) -> None:
    (tmp_path / "backing/d").mkdir(parents=True)
    (tmp_path / "backing/d/f").write_bytes(b"bytes")
    (tmp_path / "backing/d/f").chmod(0o600)  # of no account: the kernel is not to look
    slow = mount("--own-permissions")
    slow.tell("guard 61000 /d/")

    def cat(user: int = 0, group: int = 0, extra_groups: Sequence[int] = ()) -> int:
        who = {"user": user, "group": group, "extra_groups": extra_groups}
        return subprocess.run(["cat", "d/f"], cwd=slow.path, capture_output=True, check=False, **who).returncode

    assert cat() == 0
    assert cat(user=61001, group=61001) == 1
    assert cat(user=61001, group=61000) == 0
    assert cat(user=61001, group=61001, extra_groups=[7, 61000]) == 0
    assert slow.state()["refused"] == 1
    with pytest.raises(OSError, match="Operation not supported"):
        os.getxattr(slow.path / "d/f", "system.posix_acl_access")
    slow.tell("unguard")
    assert cat(user=61001, group=61001) == 0
    with pytest.raises(OSError, match="Invalid argument"):
        slow.tell("guard everybody /d/")
