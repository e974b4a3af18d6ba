"""What this process, and so a daemon that it starts, may have: open files, processes, memory, a look at others.

Limits of control groups may stand at any group above ours, in either version; the least holds.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator

from hfs.doctor.check_result import CheckResult, good, limit, note
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.core.memory import available_bytes, group_folders, groups_of
from hfs.policies.descriptors import shares

_FILES_WANTED = 65_536
"""As mountd/core/open_files.py asks for."""
_PROCESSES = 512
"""256 threads for the source, and those that write, stat, answer and fetch ahead."""
_MEMORY_BYTES = 1 << 30
"""128 MiB of buffers, 66 MB of Python, up to 170 MB while staging, and pages for what is read."""

Limits = Callable[[int], tuple[int, int]]


def check(around: Surroundings, limits: Limits = resource.getrlimit) -> Iterator[CheckResult]:
    """One finding for each kind."""
    yield _open_files(limits(resource.RLIMIT_NOFILE)[1])
    yield _processes(around, limits(resource.RLIMIT_NPROC)[0])
    yield _memory(around)
    yield from _hidden(around)


def _open_files(hard: int) -> CheckResult:
    name = "open-files"
    if hard != resource.RLIM_INFINITY and shares(min(hard, _FILES_WANTED)).scarce:
        text = f"a process may have {hard:,} files open: the daemon keeps fewer of them open, and is slower"
        return limit(name, text, "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=) to 4096 or more")
    return good(
        name, f"a process may have {'any number of' if hard == resource.RLIM_INFINITY else f'{hard:,}'} files open"
    )


def _processes(around: Surroundings, soft: int) -> CheckResult:
    name, what = "processes", "processes and threads"
    left = room_for_processes(around)
    if left is not None and left < _PROCESSES:
        text = (
            f"the control group lets {left:,} more {what} be started, a daemon may want {_PROCESSES}: reads get slower"
        )
        return limit(name, text, "raise pids.max of the job or container")
    # Root is not held to it.
    if around.uid != 0 and soft != resource.RLIM_INFINITY and soft < _PROCESSES:
        text = f"user {around.uid} may have {soft:,} {what}, a daemon may want {_PROCESSES}: reads get slower"
        return limit(name, text, "raise the limit: ulimit -u")
    return good(name, f"enough {what} may be started")


def room_for_processes(around: Surroundings) -> int | None:
    """How many more the control groups allow; None: any number."""
    found = None
    for folder, _ in group_folders(f"{around.proc}/self", "pids"):
        try:
            with open(f"{folder}/pids.max") as file:
                most = file.read().strip()
            with open(f"{folder}/pids.current") as file:
                now = int(file.read())
        except (OSError, ValueError):
            continue  # the root of all has no limit, and no file that says so
        if most.isdigit():
            found = int(most) - now if found is None else min(found, int(most) - now)
    return None if found is None else max(0, found)


def _memory(around: Surroundings) -> CheckResult:
    available = available_bytes(f"{around.proc}/meminfo", groups_of(f"{around.proc}/self"))
    shown = f"{available / 1e9:,.1f} GB of memory are available to this process"
    if available < _MEMORY_BYTES:
        remedy = "ask for more memory for the job (memory.max), or give a smaller buffer: -o buffer=32M"
        return limit("memory", f"{shown}, job included; a daemon takes some 300 MB", remedy)
    return good("memory", shown)


def _hidden(around: Surroundings) -> Iterator[CheckResult]:
    proc = next((mount for mount in reversed(around.table) if mount.mountpoint == "/proc"), None)
    if proc is None or around.uid == 0:
        return
    options = dict(option.partition("=")[::2] for option in proc.super_options.split(","))
    if options.get("hidepid", "off") not in {"0", "off"} and int(options.get("gid", "-1")) not in os.getgroups():
        text = "/proc hides processes of other users (hidepid): whoever of them keeps a mount busy is not named"
        yield note("proc", text)
