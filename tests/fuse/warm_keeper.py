"""`python -I -S warm_keeper.py ROOT PID SOCKET`: the keeper. Its first daemon is its child PID, which has imported all
that it needs and waits at SOCKET for its streams (tests/fuse/warm.py)."""

import json
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

ROOT, DAEMON = sys.argv[1], int(sys.argv[2])
CONNECTION = socket.socket(fileno=int(sys.argv[3]))
CONNECTION.set_inheritable(False)
sys.path.append(ROOT)

from hfs.mountd.supervisor import daemons  # noqa: E402 - the line above finds it


def start(
    _command: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: str,
    env: Mapping[str, str],
    close_fds: bool,
) -> SimpleNamespace:
    """In place of the first process that is started."""
    assert not close_fds
    daemons.subprocess = subprocess  # type: ignore[attr-defined]  # to others it is the module's own business
    with CONNECTION:
        order = json.dumps({"directory": cwd, "environment": dict(env)}).encode()
        sent = socket.send_fds(CONNECTION, [order], [stdin, stdout, stderr])
        CONNECTION.sendall(order[sent:])
    return SimpleNamespace(pid=DAEMON)


daemons.subprocess = SimpleNamespace(Popen=start)  # type: ignore[attr-defined]
sys.argv[1:] = []
sys.path.insert(0, "")  # the program takes away the directory that it was started from
runpy.run_path(f"{ROOT}/hfs/mountd/supervisor/__main__.py", run_name="__main__")
