"""Without the extension: a request that is taken back before it is read stops nobody."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from tests.fuse.harness import Hfs
from tests.fuse.injection import hidden, injected, skipping
from tests.support.pattern import check, write_pattern


def test_a_request_that_is_taken_back_before_it_is_read_does_not_stop_the_mount(
    tmp_path: Path, hfs_mount: Callable[..., Hfs]
) -> None:
    """pyfuse3 is told of requests that are not there, and reads its connection: it never blocks, and the session goes
    on."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(30):
        write_pattern(source / f"{number}", 100 + number, 5000)
    changes = [hidden("hfs.mountd.native._fastpath"), skipping("pyfuse3:_wait_fuse_readable", 50, True)]
    hfs = hfs_mount(source, env=injected(*changes))
    for number in range(30):
        check(100 + number, 0, (hfs.path / f"{number}").read_bytes())
    assert hfs.status()["readers_unknown"] is not None, "the extension is there"
    (connection,) = (name for name in os.listdir(f"/proc/{hfs.pid}/fd") if _leads_to(hfs.pid, name) == "/dev/fuse")
    flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{hfs.pid}/fdinfo/{connection}").read_text())
    assert flags is not None
    assert int(flags[1], 8) & os.O_NONBLOCK


def _leads_to(pid: int, name: str) -> str:
    return os.readlink(f"/proc/{pid}/fd/{name}")
