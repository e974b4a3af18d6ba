"""Sources that root may not read: what one user has, on a server that squashes root, or on that user's own FUSE mount.

They lie where everybody may go, since the user has to come to them by their path; pytest's own folders are shut.
"""

import ast
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fuse.harness import must, unmount_lazily, wait_gone
from tests.fuse.slowfs import PROGRAM, SlowFs
from tests.fuse.users import User
from tests.support.pattern import write_pattern

OWNER = User(61001, 61000, (7,))
OTHER = User(61002, 61002)
AS_OWNER = ("--as-user", "61001:61000:7")

FOLDERS, FILES = 3, 60
LARGE = 1_300_000


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, gone with the block."""
    path = Path(tempfile.mkdtemp(prefix="hfs-squashed-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def owned_tree(folder: Path) -> Path:
    """Of OWNER, and of nobody else: small files, a large one, an empty one, links, an extended attribute."""
    for number in range(FOLDERS * FILES):
        path = folder / f"d{number % FOLDERS}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_pattern(path, number + 1, 97 * number)
    write_pattern(folder / "large", 5000, LARGE)
    (folder / "link").symlink_to("d0/f0")
    (folder / "nowhere").symlink_to("gone")
    os.setxattr(folder / "large", "user.label", b"of one user")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, OWNER.uid, OWNER.gid, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def all_of(folder: str | Path) -> dict[str, object]:
    """What is there: by path the kind and owner of each, with bytes, target and attributes. Raises OSError."""
    found: dict[str, object] = {}

    def add(path: str) -> None:
        status = os.lstat(path)
        what: list[object] = [status.st_mode, status.st_uid, status.st_gid, status.st_nlink]
        if stat.S_ISLNK(status.st_mode):
            what.append(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                what += [status.st_size, hashlib.sha256(file.read()).hexdigest()]
            what += [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))]
        else:
            names = os.listdir(path)
            what.append(sorted(names))
            for name in names:
                add(f"{path}/{name}")
        found[os.path.relpath(path, folder)] = what

    add(str(folder))
    return found


def told(user: User, question: Callable[[], object], folder: Path = Path("/")) -> Any:
    """What `question` gives for the user, as a literal; the error that it raises as text, if it does."""
    answer = user.told(folder, question)
    try:
        return ast.literal_eval(answer)
    except (SyntaxError, ValueError):
        return answer


class PrivateSlowFs(SlowFs):
    """One of OWNER, which the kernel lets nobody else enter, root included."""

    def mount(self) -> None:
        """As that of `SlowFs`. The mount is of the real ids."""
        self.path.mkdir(exist_ok=True)
        ids = ("--ruid", str(OWNER.uid), "--rgid", str(OWNER.gid), "--keep-groups")
        must("setpriv", *ids, PROGRAM, *self.options, "--private", self.backing, self.path)
        self.pid = int(self.counters()["pid"])

    def counters(self) -> dict[str, Any]:
        """As that of `SlowFs`."""
        found = told(OWNER, super().counters)
        assert isinstance(found, dict), found
        return found

    def order(self, *commands: str) -> None:
        """As that of `SlowFs`."""
        assert told(OWNER, lambda: SlowFs.order(self, *commands)) is None

    def close(self) -> None:
        """End it whatever its state."""
        if os.path.ismount(self.path) or not wait_gone(self.pid, 0):
            unmount_lazily(self.path)
        assert wait_gone(self.pid)
