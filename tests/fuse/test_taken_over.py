"""Another release takes a mount over while a crowd waits: who was put off too is answered, by the new daemon."""

import os
import subprocess
import sys
from pathlib import Path

from hfs.client.client import Client
from tests.fuse.harness import Hfs, HfsMount, environment, hfs_command, must, wait_gone
from tests.fuse.injection import injected, setting
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import needs_root

pytestmark = [needs_root]

# Each thread looks up a name of its own: a file of so many bytes.
CROWD = """
import os, sys, threading
os.setgroups([]), os.setgid(65534), os.setuid(65534)
threading.stack_size(1 << 16)
said = []
def look(number):
    try:
        said.append(os.stat(str(number)).st_size)
    except OSError as error:
        said.append(os.strerror(error.errno))
threads = [threading.Thread(target=look, args=(number,)) for number in range(int(sys.argv[1]), int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*sorted(said))
"""
SERVED = 8
"""Of one user, where nobody else waits: half of all."""
FEW = injected(setting("hfs.mountd.fuse.boundary:MAX_REQUESTS", 2 * SERVED))
STAY, DIE = SERVED + 8, 4


def crowd(hfs: Hfs, first: int, end: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", CROWD, str(first), str(end)]
    there = hfs.path / "hangs"
    return subprocess.Popen(command, cwd=there, env=environment(), stdout=subprocess.PIPE, text=True)


def wait_put_off(hfs: Hfs) -> None:
    """All that there is no room for wait to be served."""
    client = Client(str(hfs.socket))
    while client.status()["counters"]["requests_put_off"]["value"] < STAY + DIE - SERVED:
        pass


def test_who_was_put_off_is_answered_by_the_next_daemon(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    tree = tmp_path / "tree"
    (tree / "hangs").mkdir(parents=True)
    for number in range(STAY + DIE):
        (tree / "hangs" / str(number)).touch()
        os.truncate(tree / "hangs" / str(number), number)
    slow = slow_source(tree)
    hfs = hfs_mount(slow.path, env=FEW)
    slow.order("fault lookup hang path /hangs/")
    with crowd(hfs, 0, STAY) as staying, crowd(hfs, STAY, STAY + DIE) as dying:
        try:
            wait_put_off(hfs)
            take = (hfs_command(), "mount", "--take-over", hfs.source, hfs.path, "--cache", hfs.cache, *hfs.options)
            must(*take, env={"HFS_LOG_FILE": str(hfs.log), **FEW})
            hfs.look()
            wait_put_off(hfs)
            dying.kill()
            assert wait_gone(dying.pid), "who waits for the second daemon can be killed"
        finally:
            slow.order("clear")
        said, _ = staying.communicate()
    assert said.split() == [str(number) for number in range(STAY)]
