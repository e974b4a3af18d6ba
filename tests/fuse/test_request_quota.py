"""A user whose requests all hang has a part of those that are served: all others go on. Through a real mount."""

import os
import subprocess
import sys
from pathlib import Path

from hfs.mountd.fuse.boundary import MAX_REQUESTS
from tests.fuse.harness import HfsMount, environment, wait_gone
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import MEMBER, needs_root

pytestmark = [needs_root]

# Each thread looks up a name of its own.
CROWD = """
import os, sys, threading
os.setgroups([]), os.setgid(65534), os.setuid(65534)
threading.stack_size(1 << 16)
def look(number):
    try:
        os.stat(str(number))
    except OSError:
        pass
for number in range(int(sys.argv[1])):
    threading.Thread(target=look, args=(number,), daemon=True).start()
sys.stdin.read()
"""


def test_a_user_whose_requests_all_hang_keeps_nobody_out(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    tree = tmp_path / "tree"
    (tree / "hangs").mkdir(parents=True)
    (tree / "fine").mkdir()
    (tree / "fine" / "file").write_bytes(b"bytes")
    slow = slow_source(tree)
    hfs = hfs_mount(slow.path)
    assert MEMBER.reads(hfs.path, "fine/file") == b"bytes"
    assert os.listdir(hfs.path / "fine") == ["file"]
    connection = Path(f"/sys/fs/fuse/connections/{os.minor(os.stat(hfs.path).st_dev)}/waiting")
    slow.order("fault lookup hang path /hangs/")
    count = MAX_REQUESTS + 50
    command = [sys.executable, "-I", "-S", "-c", CROWD, str(count)]
    with subprocess.Popen(command, cwd=hfs.path / "hangs", env=environment(), stdin=subprocess.PIPE) as crowd:
        try:
            while int(connection.read_text()) < count:
                assert crowd.poll() is None
            assert MEMBER.reads(hfs.path, "fine/file") == b"bytes"
            assert os.listdir(hfs.path / "fine") == ["file"]
            assert hfs.status()["counters"]["requests_put_off"]["value"] >= count - MAX_REQUESTS // 2 - 1
        finally:
            crowd.kill()
            if not (in_time := wait_gone(crowd.pid)):  # the source hangs for longer
                slow.order("clear")
    assert in_time, "who was put off has not died"
    while int(connection.read_text()):
        pass
