"""Namespaces: may this user have a mount namespace of its own, as `hfs run` in place needs, and overlays in it; are we
in a container?

The first is tried by a process that ends at once: what the kernel is told to allow stands in four places, and filters
of containers in none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from hfs.doctor.check_result import CheckResult, good, limit, note
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.supervisor.errand import Errand
from hfs.mounting.view import own_namespaces, why_no_overlays

_NAME = "user-namespaces"
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


def check(
    around: Surroundings, attempt: Callable[[], int] = try_own_namespace, containers: tuple[str, ...] = _CONTAINERS
) -> Iterator[CheckResult]:
    """One finding of `hfs run` in place, and a note in a container."""
    number = attempt()
    if number:
        text = f"hfs run cannot show the data at SOURCE itself: {_why(around, number)}"
        yield limit(_NAME, text, f"{_remedy(around)}, or use hfs run --at DIR or hfs mount")
    else:
        yield good(_NAME, "hfs run can show the data at SOURCE itself")
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
