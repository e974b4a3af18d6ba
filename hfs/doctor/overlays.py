"""Overlays: can this user have what is staged read by the kernel itself?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hfs.doctor.check_result import CheckResult, good, note
from hfs.doctor.surroundings import Surroundings
from hfs.mounting import overlay_probe

_NAME = "overlays"


def check(around: Surroundings, attempt: Callable[[], str] = overlay_probe.why_none) -> Iterator[CheckResult]:
    """One finding. What has none works as ever."""
    if why := attempt():
        yield note(_NAME, f"no overlays: {why}; what is staged is read by passthrough or through the daemon")
    else:
        which = "hfs run, and hfs mount with --io-mode overlay" if around.uid == 0 else "hfs run"
        yield good(_NAME, f"with --immutable, {which} can have the kernel itself read what is staged")
