"""The directories of our sockets: ours alone, and without sockets that nobody listens at.

A stale socket harms nobody, and the next mount removes it; it tells that something was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from hfs.doctor.check_result import CheckResult, good, limit
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.core import socket_places

_NAME = "sockets"
_AGAIN_S = 0.2
"""Between bind and listen of a process that is just starting lie microseconds."""


def check(around: Surroundings, directories: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """One finding for each directory that is not ours alone, and one for each with stale sockets."""
    places = socket_places.directories_of(around.uid) if directories is None else list(directories)
    shut, stale = [], []
    for place in places:
        try:
            if socket_places.is_private(place, around.uid):
                stale += _stale(place)
            else:
                shut.append(place)
        except OSError:
            continue  # not there yet, or not to be made: the next one is used
    if stale:
        time.sleep(_AGAIN_S)
        stale = [path for path in stale if socket_places.is_stale(path)]
    for place in shut:
        text = f"{place}: belongs to another user, or others may write to it: no socket is put there"
        yield limit("socket-directory", text, "have it removed: commands do not find a mount that hangs without it")
    if stale:
        many = "1 socket" if len(stale) == 1 else f"{len(stale)} sockets"
        text = f"{many} that nobody listens at, of daemons that were killed: {stale[0]}"
        text += ", ..." if len(stale) > 1 else ""
        yield limit("stale-sockets", text, f"rm {' '.join(stale[:4])}; hfs mount removes its own")
    if not shut and not stale:
        yield good(_NAME, f"no stale sockets in {', '.join(places)}")


def _stale(directory: str) -> list[str]:
    ends = (socket_places.DAEMON, socket_places.KEEPER)
    paths = [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.endswith(ends)]
    return [path for path in paths if socket_places.is_stale(path)]
