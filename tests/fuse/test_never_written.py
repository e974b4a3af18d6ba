"""SOURCE is never written to: mounted read-only it serves all the same, and no call that would write reaches it."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, environment, hfs_command, must, run
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import NOBODY
from tests.support.pattern import write_pattern

LARGE = 300_000
SMALL = 3000

WRITES = re.compile(
    r"(write|pwrite64|pwritev2?|writev|ftruncate|truncate|fallocate|utimensat|utime|utimes|futimesat|rename|renameat2?|"
    r"unlink|unlinkat|rmdir|mkdir|mkdirat|mknod|mknodat|link|linkat|symlink|symlinkat|chmod|fchmod|fchmodat2?|chown|"
    r"lchown|fchown|fchownat|setxattr|lsetxattr|fsetxattr|removexattr|lremovexattr|fremovexattr|creat|copy_file_range|"
    r"sendfile|splice|flock|fsync|fdatasync|sync_file_range)"
)
WRITING_FLAGS = re.compile(
    r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b|F_(SETLK|SETLKW|OFD_SETLK|SETLEASE)\b|PROT_WRITE.*MAP_SHARED\b"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    write_pattern(folder / "large", 1, LARGE)
    for seed in range(2, 12):
        write_pattern(folder / "sub" / f"small-{seed}", seed, SMALL)
    (folder / "link").symlink_to("large")
    return folder


def work_out(hfs: Path) -> None:
    """All that people do with a mount: list, stat, read, map, ask for attributes, try to write, warm, check, evict."""
    for _ in range(2):
        must("ls", "-lR", hfs)
        must("cmp", hfs / "large", hfs / "link")
        for name in sorted(os.listdir(hfs / "sub")):
            (hfs / "sub" / name).read_bytes()
        os.statvfs(hfs)
        for name in os.listxattr(hfs / "large"):
            os.getxattr(hfs / "large", name)
        if os.geteuid() == 0:
            NOBODY.run(hfs, "cat", "large")
        must(hfs_command(), "cache", "warm", hfs)
    must(hfs_command(), "cache", "check", "--against-source", hfs)
    must(hfs_command(), "cache", "evict", hfs / "sub")
    (hfs / "sub" / "small-2").read_bytes()
    for write in (
        lambda: (hfs / "large").open("r+b").close(),
        lambda: (hfs / "large").unlink(),
        lambda: (hfs / "new").mkdir(),
        lambda: os.utime(hfs / "large"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            write()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount read-only")
def test_a_source_that_is_mounted_read_only(tree: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    bound = tmp_path / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", tree, bound], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro,noatime", bound], check=True)
        hfs = hfs_mount(bound)
        work_out(hfs.path)
        hfs.umount()
    finally:
        subprocess.run(["umount", "-l", bound], check=True)


def test_no_request_that_would_write_reaches_the_source(
    tree: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """The source itself counts what would change anything, or opens a file to write."""
    slow = slow_source(tree)
    hfs = hfs_mount(slow.path)
    work_out(hfs.path)
    hfs.umount()
    assert slow.counters()["writes"] == 0
    assert slow.counters()["read"] > 0


def test_no_system_call_that_would_write_names_the_source(tree: Path, tmp_path: Path) -> None:
    """All processes of a mount are watched from its start to its end."""
    strace = shutil.which("strace")
    if strace is None or run(strace, "-o", tmp_path / "try", "true").returncode:
        pytest.skip("strace is not installed, or may not watch")
    mnt, trace = tmp_path / "mnt", tmp_path / "trace"
    mnt.mkdir()
    watched = (strace, "-f", "-y", "-s", "256", "-e", "trace=%file,%desc", "-o", trace)
    command = (hfs_command(), "mount", "-f", tree, mnt, "--cache", tmp_path / "cache", "--cache-size", "1G")
    daemon = subprocess.Popen(
        [*watched, *command],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.stderr is not None
    try:
        for line in daemon.stderr:
            if "mounted" in line:
                break
        work_out(mnt)
        must(hfs_command(), "umount", mnt)
    finally:
        if os.path.ismount(mnt):
            daemon.send_signal(signal.SIGTERM)
        daemon.stderr.read()
        daemon.stderr.close()
        daemon.wait()
    place = re.escape(str(tree))
    # A descriptor that leads there, or a path that does; what is written elsewhere may speak of it.
    named = re.compile(rf'<{place}[/>]|\(([A-Z_]+(<[^>]*>)?, )?"{place}[/"]')
    calls = [line for line in trace.read_text(errors="replace").splitlines() if named.search(line)]
    assert any("pread" in call for call in calls)
    found = []
    for call in calls:
        name = re.match(r"\d+ +(?:<\.\.\. )?(\w+)", call)
        assert name is not None, call
        if WRITES.fullmatch(name[1]) or WRITING_FLAGS.search(call):
            found.append(call)
    assert not found
