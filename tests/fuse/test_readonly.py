"""Every write-like operation gives EROFS, also to root, and leaves the source as it was."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.conftest import Mounts
from tests.fuse.trees import different_contents, stat_of, walk
from tests.support.pattern import write_pattern

Shown = tuple[Path, Path]
"""The source, and where it is mounted."""


def opened(path: Path, flags: int) -> None:
    os.close(os.open(path, flags, 0o666))


def bind_socket(path: Path) -> None:
    # A socket's path is limited to 108 bytes; through a descriptor it is short.
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(f"/proc/self/fd/{parent}/{path.name}")
    finally:
        os.close(parent)


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "open for writing": lambda root: opened(root / "file", os.O_WRONLY),
    "open for reading and writing": lambda root: opened(root / "file", os.O_RDWR),
    "open to append": lambda root: opened(root / "file", os.O_WRONLY | os.O_APPEND),
    "open with O_TRUNC for reading": lambda root: opened(root / "file", os.O_RDONLY | os.O_TRUNC),
    "open with O_TRUNC for writing": lambda root: opened(root / "file", os.O_WRONLY | os.O_TRUNC),
    "create": lambda root: opened(root / "new", os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda root: opened(root / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "create, reading only": lambda root: opened(root / "new", os.O_RDONLY | os.O_CREAT),
    "a nameless file": lambda root: opened(root / "dir", os.O_RDWR | os.O_TMPFILE),
    "mkdir": lambda root: os.mkdir(root / "new"),
    "rmdir": lambda root: os.rmdir(root / "dir"),
    "unlink": lambda root: os.unlink(root / "file"),
    "unlink of a symbolic link": lambda root: os.unlink(root / "symlink"),
    "rename": lambda root: os.rename(root / "file", root / "new"),
    "rename over another": lambda root: os.rename(root / "file", root / "other"),
    "rename of a directory": lambda root: os.rename(root / "dir", root / "new"),
    "link": lambda root: os.link(root / "file", root / "new"),
    "symlink": lambda root: os.symlink("file", root / "new"),
    "mknod": lambda root: os.mknod(root / "new", 0o666 | stat.S_IFREG),
    "mkfifo": lambda root: os.mkfifo(root / "new"),
    "bind a socket": lambda root: bind_socket(root / "new"),
    "truncate": lambda root: os.truncate(root / "file", 0),
    "truncate to grow": lambda root: os.truncate(root / "file", 1 << 30),
    "chmod": lambda root: os.chmod(root / "file", 0o777),
    "chmod of a directory": lambda root: os.chmod(root / "dir", 0o777),
    "chown": lambda root: os.chown(root / "file", 1, 1),
    "lchown": lambda root: os.lchown(root / "symlink", 1, 1),
    "utimens": lambda root: os.utime(root / "file", ns=(1, 1)),
    "utimens to now": lambda root: os.utime(root / "file"),
    "setxattr": lambda root: os.setxattr(root / "file", "user.new", b"x"),
    "setxattr of one of ours": lambda root: os.setxattr(root / "file", "user.hfs.state", b"x"),
    "setxattr of an ACL": lambda root: os.setxattr(root / "file", "system.posix_acl_access", bytes.fromhex("02000000")),
    "removexattr": lambda root: os.removexattr(root / "file", "user.kept"),
    "chmod of the root": lambda root: os.chmod(root, 0o777),
}

# The kernel asks the directory for O_TMPFILE only after it has seen that the mount is read-only; mkdir and the like of
# a name that exists may say EEXIST, therefore none of the names above does.


@pytest.fixture(scope="module", params=[(), ("--io-mode", "stateless", "--immutable")], ids=["auto", "stateless"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared_mount: Mounts) -> Shown:
    """In a stateless mount the daemon is not asked at an open, and the kernel must refuse by itself."""
    root = tmp_path_factory.mktemp("tree")
    (root / "dir").mkdir()
    for seed, name in enumerate(("file", "other", "dir/inside"), 1):
        write_pattern(root / name, seed, 70_000)
    (root / "symlink").symlink_to("file")
    os.setxattr(root / "file", "user.kept", b"kept")
    hfs = shared_mount(root, *request.param, cache=root.with_name(f"{root.name}-cache"))
    assert (hfs.path / "other").read_bytes() == (root / "other").read_bytes()
    return root, hfs.path


def test_every_write_gives_erofs(shown: Shown) -> None:
    tree, mount = shown
    before = {name: stat_of(os.path.join(os.fsencode(tree), name)) for name in walk(os.fsencode(tree))}
    answers = {}
    for name, operation in OPERATIONS.items():
        try:
            operation(mount)
            answers[name] = "done"
        except OSError as error:
            answers[name] = errno.errorcode[error.errno or 0]
    assert {name: answer for name, answer in answers.items() if answer != "EROFS"} == {}
    after = {name: stat_of(os.path.join(os.fsencode(tree), name)) for name in walk(os.fsencode(tree))}
    assert after == before
    assert different_contents(tree, mount) == []


def test_on_an_open_file(shown: Shown) -> None:
    """A descriptor opened for reading gives no way round."""
    tree, mount = shown
    descriptor = os.open(mount / "file", os.O_RDONLY)
    try:
        for refused in (
            lambda: os.fchmod(descriptor, 0o777),
            lambda: os.fchown(descriptor, 1, 1),
            lambda: os.utime(descriptor, ns=(1, 1)),
            lambda: os.setxattr(descriptor, "user.new", b"x"),
            lambda: opened(Path(f"/proc/self/fd/{descriptor}"), os.O_WRONLY),
        ):
            with pytest.raises(OSError, match="Read-only file system"):
                refused()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    assert different_contents(tree, mount) == []


def test_access_says_so(shown: Shown) -> None:
    """access(W_OK), which tools ask before they write, refuses; the mount's flags say read-only."""
    _, mount = shown
    assert os.access(mount / "file", os.R_OK)
    assert not os.access(mount / "file", os.W_OK)
    assert not os.access(mount, os.W_OK)
    assert os.statvfs(mount).f_flag & os.ST_RDONLY
