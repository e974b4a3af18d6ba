"""A process beside a test that ends what the test has started if the test hangs, or its runner is killed.

A read of a mount whose daemon hangs cannot be interrupted, not even by the time limit of the test runner, and a page
fault of a mapped file holds the interpreter as well. It ends with an error as soon as the daemon is dead. A runner that
was killed (a time limit around it, no memory) takes nothing away that it has mounted, and then nobody can remove its
directory. One stands beside all tests of a runner (`Guard` in tests/fuse/harness.py): of each its standard input has a
line of JSON, then nothing until the test is over, when an empty line comes.

Standard library only and nothing of the project.
"""

import json
import os
import re
import select
import signal
import sys
from collections.abc import Mapping
from typing import Any

RUN_KEY = "MOUNT_TEST_RUN"
"""The variable by which what a test run has started is told from what others have."""
SHARED = "-shared"
"""Behind the value of that variable: started for all tests of a module, and not left behind by one of them."""


def processes_of_run(run: str, below: str, marker: str | None = None) -> dict[int, str]:
    """pid -> command line of all that carry `marker` (NAME=value; else the run) or have `below` on the command line.

    Not of those that another run has started: hfs doctor looks at all mounts of the machine, and a command of it names
    a mount of this one.
    """
    key, own = f"{RUN_KEY}=".encode(), f"{RUN_KEY}={run}".encode()
    wanted = own if marker is None else marker.encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        foreign = any(entry.startswith(key) and entry != own for entry in entries)
        if command and (wanted in entries or (os.fsencode(below) in command and not foreign)):
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def mounts_below(folder: str) -> list[str]:
    """Mount points, the innermost first."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        points = [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in file]
    return sorted((point for point in points if f"{point}/".startswith(f"{folder}/")), reverse=True)


def main() -> None:
    """One test after the other."""
    lines = sys.stdin.buffer.raw  # type: ignore[attr-defined]  # it is a BufferedReader
    while line := lines.readline():
        order = json.loads(line)
        is_in_time = bool(select.select([lines], [], [], order["limit_s"])[0])
        if is_in_time and lines.readline():
            continue
        end(order, is_killed=is_in_time)
        lines.readline()


def end(order: Mapping[str, Any], *, is_killed: bool) -> None:
    """What the run has started, and where its runner was killed what that has mounted."""
    found = processes_of_run(order["run"], order["below"]) | processes_of_run(order["run"] + SHARED, order["below"])
    for pid, command in found.items():
        if pid in order["spared"]:
            continue
        why = "its runner has ended" if is_killed else "the test hangs"
        print(f"guard: {why}, killing {pid}: {command}", file=sys.stderr)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for point in mounts_below(os.path.dirname(order["below"])) if is_killed else ():
        command = ["umount", "-l", point] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", point]
        os.spawnvp(os.P_WAIT, command[0], command)


if __name__ == "__main__":
    main()
