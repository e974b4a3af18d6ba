"""What this process, and so a daemon that it starts, may have: open files, processes, memory, a look at others.

Limits of control groups may stand at any group above ours, in either version; the least holds. And namespaces: may this
user have a mount namespace of its own, as `hfs run` in place needs, and overlays in it; are we in a container? The
first is tried by a process that ends at once: what the kernel is told to allow stands in four places, and filters of
containers in none.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator

from hfs.doctor.surroundings import CheckResult, Surroundings, good, limit, note
from hfs.mountd.core.limits import available_bytes, group_folders, groups_of
from hfs.mountd.supervisor.errand import Errand
from hfs.mounting.view import own_namespaces, why_no_overlays
from hfs.policies.descriptors import shares

_FILES_WANTED = 65_536
"""As mountd/core/limits.py asks for."""
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


_TRY_S = 10.0
_CONTAINERS = ("/.dockerenv", "/run/.containerenv", "/singularity", "/.singularity.d")


def try_own_namespace() -> int:
    """errno of the attempt; 0: it went well."""
    try:
        errand = Errand(lambda _: own_namespaces(), [])
    except OSError as error:
        return error.errno or errno.EIO
    code = errand.wait(_TRY_S)
    errand.close()
    return errno.ETIMEDOUT if code is None else code


def check_namespaces(
    around: Surroundings, attempt: Callable[[], int] = try_own_namespace, containers: tuple[str, ...] = _CONTAINERS
) -> Iterator[CheckResult]:
    """One finding of `hfs run` in place, and a note in a container."""
    number = attempt()
    if number:
        text = f"hfs run cannot show the data at SOURCE itself: {_why(around, number)}"
        yield limit("user-namespaces", text, f"{_remedy(around)}, or use hfs run --at DIR or hfs mount")
    else:
        yield good("user-namespaces", "hfs run can show the data at SOURCE itself")
    container = next((name for name in containers if os.path.exists(name)), None)
    if container is not None and not _is_shared(around):
        text = f"this is a container ({container}): a mount made here is seen in it only"
        yield note("container", text, "to have it outside, mount on the host, or at a place mounted with rshared")


def check_overlays(around: Surroundings, attempt: Callable[[], str] = why_no_overlays) -> Iterator[CheckResult]:
    """One finding: whether this user can have what is staged read by the kernel itself. What has none works as ever."""
    if why := attempt():
        yield note("overlays", f"no overlays: {why}; what is staged is read by passthrough or through the daemon")
    else:
        which = "hfs run, and hfs mount with --io-mode overlay" if around.uid == 0 else "hfs run"
        yield good("overlays", f"with --immutable, {which} can have the kernel itself read what is staged")


def _why(around: Surroundings, number: int) -> str:
    why = os.strerror(number)
    if around.uid == 0:
        return f"root may not have a mount namespace of its own ({why})"
    for name, forbidden in _SETTINGS.items():
        if around.number(f"sys/{name}") == forbidden:
            return f"user {around.uid} may not have a user namespace ({name.replace('/', '.')} is {forbidden})"
    return f"user {around.uid} may not have a user namespace ({why})"


_SETTINGS = {
    "user/max_user_namespaces": 0,
    "kernel/unprivileged_userns_clone": 0,
    "kernel/apparmor_restrict_unprivileged_userns": 1,
}
"""What forbids it."""


def _remedy(around: Surroundings) -> str:
    if around.uid == 0:
        return "give the container CAP_SYS_ADMIN"
    for name, forbidden in _SETTINGS.items():
        if around.number(f"sys/{name}") == forbidden:
            allowed = 15000 if name == "user/max_user_namespaces" else 1 - forbidden
            return f"ask for sysctl {name.replace('/', '.')}={allowed}"
    return "ask for user namespaces (in a container: a seccomp profile that has unshare)"


def _is_shared(around: Surroundings) -> bool:
    """Whether mounts below / are seen in other mount namespaces too."""
    for line in around.lines("self/mountinfo"):
        fields = line.partition(" - ")[0].split(" ")
        if len(fields) > 6 and fields[4] == "/":
            return any(field.startswith("shared:") for field in fields[6:])
    return False
