"""`examine`: all checks, one after the other, each bounded in time; one that fails is a finding and stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hfs.doctor import (
    cache_place,
    cache_speed,
    caches,
    fuse_device,
    fusermount,
    kernel,
    libfuse,
    limits,
    mounts,
    namespaces,
    sockets,
    source,
)
from hfs.doctor.check_result import CheckResult, Level, limit
from hfs.doctor.surroundings import Surroundings

Check = Callable[[Surroundings], Iterator[CheckResult]]

CHECKS: dict[str, Check] = {
    "fuse-device": fuse_device.check,
    "fusermount": fusermount.check,
    "kernel": kernel.check,
    "libfuse": libfuse.check,
    "limits": limits.check,
    "namespaces": namespaces.check,
    "overlays": namespaces.check_overlays,
    "source": source.check,
    "cache": cache_place.check,
    "cache-index": caches.check,
    "cache-speed": cache_speed.check,
    "mounts": mounts.check,
    "sockets": sockets.check,
}
"""In the order in which a mount would meet what they look at."""


def examine(around: Surroundings, checks: dict[str, Check] = CHECKS) -> Iterator[CheckResult]:
    """What all checks find, as they find it."""
    for name, check in checks.items():
        try:
            for finding in check(around):
                if finding.check == "source" and finding.level is Level.FAULT:
                    around = around.without_source()  # nobody asks it again
                yield finding
        except Exception as error:  # noqa: BLE001 - whatever a strange machine makes of one check, the others go on
            text = f"the check {name} failed: {type(error).__name__}: {error}"
            yield limit("doctor", text, "please report it; the other checks are not concerned")
