"""`Apart`: a mount namespace to run commands in as root, with /run, and one directory, of its own.

What is mounted and listened at there is not seen elsewhere, and hfs there sees nothing of other tests. Processes,
cgroups and network are the machine's.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Private copies of the machine's mounts, without those of FUSE, which they would keep alive, and overlays over them.
_BEGIN = """
set -e
grep -E ' - (fuse|overlay hfs)' /proc/self/mountinfo | cut -d ' ' -f 5 | tac | while read -r place; do
    umount -l "$place" || true
done
mount -t tmpfs run /run
mount --bind "$1" "$2"
echo ready
exec sleep infinity
"""


class Apart:
    """Until closed. `folder` is seen as `here` in it."""

    def __init__(self, folder: Path, here: Path, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._anchor = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BEGIN, "sh", folder, here],
            stdout=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        assert self._anchor.stdout is not None
        if self._anchor.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("no mount namespace with directories of its own")

    def entered(self, *command: str | os.PathLike[str]) -> list[str]:
        """The command, in it."""
        return ["nsenter", f"--mount=/proc/{self._anchor.pid}/ns/mnt", *map(os.fspath, command)]

    def mounts(self) -> list[str]:
        """Mountpoints of hfs."""
        lines = Path(f"/proc/{self._anchor.pid}/mountinfo").read_text(errors="surrogateescape").splitlines()
        return [line.split()[4] for line in lines if " - fuse.hfs " in line]

    def sockets(self) -> list[str]:
        """Those of root."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(f"/proc/{self._anchor.pid}/root/run/hfs")
            return sorted(name for name in names if name.endswith((".sock", ".keeper")))
        return []

    def processes(self) -> dict[int, str]:
        """pid -> command line of all that run in it."""
        mine = os.readlink(f"/proc/{self._anchor.pid}/ns/mnt")
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if int(entry) != self._anchor.pid and os.readlink(f"/proc/{entry}/ns/mnt") == mine:
                    command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry)] = command.decode(errors="replace").strip()
        return found

    def close(self) -> None:
        """It goes with its last process."""
        self._anchor.kill()
        self._anchor.wait()
        assert self._anchor.stdout is not None
        self._anchor.stdout.close()
