"""A source that says that it is not there: what is staged of it opens and reads on by name, as while it hangs, and
directories that were listed are listed."""

import errno
import os
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, kill, unmount_lazily
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

FILES = 8
FAULTS = {
    "dead": (),
    "eio": tuple(f"fault {kind} eio 1 forever" for kind in ("lookup", "getattr", "opendir", "readdir")),
    "estale": tuple(f"fault {kind} estale 1 forever" for kind in ("lookup", "getattr", "opendir", "readdir")),
}
"""A FUSE file system whose process has died answers ENOTCONN."""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_staged_opens_by_name_while_the_source_is_away(
    tmp_path: Path,
    slow_source: SlowSource,
    hfs_mount: HfsMount,
    fault: str,
    request: pytest.FixtureRequest,
) -> None:
    backing = tmp_path / "backing"
    (backing / "d" / "e").mkdir(parents=True)
    for number in range(FILES):
        (backing / "d" / "e" / str(number)).write_bytes(pattern(number + 1, 0, 9000))
    (backing / "d" / "link").symlink_to("e/0")
    (backing / "d" / "cold").write_bytes(b"cold")
    source = slow_source(backing)
    hfs = hfs_mount(source.path, "-o", "ttl=0.1")
    hfs.expect_warning("I/O error")
    here = hfs.path / "d" / "e"
    assert hfs.cache_command("warm", here).returncode == 0
    names = sorted(path.name for path in here.iterdir())
    for name in names:
        assert (here / name).read_bytes()
    assert os.readlink(hfs.path / "d" / "link") == "e/0"
    os.listxattr(hfs.path)
    os.listdir(hfs.path / "d")
    if fault == "dead":
        kill(source.pid)
        request.addfinalizer(lambda: unmount_lazily(source.path))
    else:
        source.order(*FAULTS[fault])
    while not hfs.status()["stale_served"]:
        assert os.stat(here / "1").st_size == 9000
    socket = os.getxattr(hfs.path, "user.hfs.socket")
    for number in range(FILES):
        assert (here / str(number)).stat().st_size == 9000
        assert (here / str(number)).read_bytes() == pattern(number + 1, 0, 9000)
    assert (hfs.path / "d" / "link").read_bytes() == pattern(1, 0, 9000)
    assert sorted(os.listdir(here)) == names
    assert sorted(os.listdir(hfs.path / "d")) == ["cold", "e", "link"]
    assert {entry.name: entry.stat().st_size for entry in os.scandir(here)} == dict.fromkeys(names, 9000)
    assert os.getxattr(hfs.path, "user.hfs.socket") == socket
    with pytest.raises(OSError) as caught:
        (hfs.path / "d" / "never heard of").stat()
    assert caught.value.errno in (errno.ENOTCONN, errno.EIO, errno.ESTALE), "what nothing is known of is no guess"
