"""Reading as somebody else: commands that run as another user, inside a folder that this user could not reach.

pytest's folders are closed to other users, so a command is started in the folder that it looks at, and names what it
wants relative to that. Only root can become another user: `needs_root` marks the tests.
"""

import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fuse.harness import COMMAND_LIMIT_S, environment

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

NO_ID = 0xFFFFFFFF


class User(NamedTuple):
    """Numbers are enough: no name service is asked."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def run(
        self, folder: Path, *command: str, limit_s: float = COMMAND_LIMIT_S
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run the command in `folder` as this user; stdout and stderr are kept."""
        return subprocess.run(
            command,
            cwd=folder,
            user=self.uid,
            group=self.gid,
            extra_groups=list(self.groups),
            env=environment({"LC_ALL": "C"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def told(self, folder: Path, question: Callable[[], object]) -> str:
        """What `question` gives in `folder` for this user, or the error that it raises, as text."""
        answer, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(folder)
                os.setgroups(self.groups)
                os.setgid(self.gid)
                os.setuid(self.uid)
                os.write(write, repr(question()).encode())
            except OSError as error:
                os.write(write, os.strerror(error.errno or 0).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(answer, "rb") as file:
            text = file.read()
        os.waitpid(pid, 0)
        return text.decode()

    def reads(self, folder: Path, name: str) -> bytes | None:
        """The bytes of a file; None where this user may not read it. Any other error fails the test."""
        done = self.run(folder, "cat", "--", name)
        if done.returncode == 0:
            return done.stdout
        assert b"Permission denied" in done.stderr, done.stderr
        return None

    def lists(self, folder: Path, name: str) -> set[str] | None:
        """The names in a directory; None where this user may not list it."""
        done = self.run(folder, "ls", "-a", "-f", "--", name)
        if done.returncode == 0:
            return set(os.fsdecode(done.stdout).split("\n")) - {"", ".", ".."}
        assert b"Permission denied" in done.stderr, done.stderr
        return None


NOBODY = User(65534, 65534)
MEMBER = User(61001, 61000)
"""Of the group that `GROUP` names, and nothing else."""
GROUP = MEMBER.gid


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as the kernel takes it: (tag, permissions, id) each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def acl_for(user: int, *, group: int = 0, others: int = 0) -> bytes:
    """rw for the owner, r for `user`; `group` and `others` as given, and the mask is r, so the group bits show r."""
    return acl((1, 6, NO_ID), (2, 4, user), (4, group, NO_ID), (16, 4, NO_ID), (32, others, NO_ID))


def refused_by_acl(path: Path, names: Sequence[str]) -> None:
    """Files whose group bits allow what their ACL denies to the group: mode 0640 root:GROUP, read by nobody else."""
    for name in names:
        os.chown(path / name, 0, GROUP)
        os.setxattr(path / name, "system.posix_acl_access", acl_for(NOBODY.uid))
