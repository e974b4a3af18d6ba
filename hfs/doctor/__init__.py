"""What is wrong with a set-up: /dev/fuse, libfuse, the kernel, the cache disk, SOURCE, limits, namespaces, mounts.

Each file is one family of checks: functions that are given the `Surroundings` and yield `CheckResult`s. None of them
mounts anything, changes anything of the machine, or waits for what hangs. Imported by the command line only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hfs.doctor import cache, fuse, libfuse, limits, mounts, source
from hfs.doctor.surroundings import CheckResult, Level, Surroundings, here, limit, worst

__all__ = ["CheckResult", "Level", "Surroundings", "examine", "here", "worst"]

Check = Callable[[Surroundings], Iterator[CheckResult]]

CHECKS: dict[str, Check] = {
    "fuse-device": fuse.check_device,
    "fusermount": fuse.check_fusermount,
    "kernel": fuse.check_kernel,
    "libfuse": libfuse.check,
    "limits": limits.check,
    "namespaces": limits.check_namespaces,
    "overlays": limits.check_overlays,
    "source": source.check,
    "cache": cache.check,
    "cache-index": cache.check_indexes,
    "mounts": mounts.check,
    "sockets": mounts.check_sockets,
}
"""In the order in which a mount would meet what they look at."""


def examine(around: Surroundings, checks: dict[str, Check] = CHECKS) -> Iterator[CheckResult]:
    """What all checks find, as they find it. One that fails is a finding, and stops no other."""
    for name, check in checks.items():
        try:
            for finding in check(around):
                if finding.check == "source" and finding.level is Level.FAULT:
                    around = around.without_source()  # nobody asks it again
                yield finding
        except Exception as error:  # noqa: BLE001 - whatever a strange machine makes of one check, the others go on
            text = f"the check {name} failed: {type(error).__name__}: {error}"
            yield limit("doctor", text, "please report it; the other checks are not concerned")
