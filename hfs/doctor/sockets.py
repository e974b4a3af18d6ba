"""The directories of our sockets: ours alone, and without sockets that nobody listens at.

A stale socket harms nobody, and the next mount removes it; it tells that something was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from hfs.doctor.check_result import CheckResult, good, limit, note
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.core import socket_places

_NAME = "sockets"
_AGAIN_S = 0.2
"""Between bind and listen of a process that is just starting lie microseconds."""


def check(around: Surroundings, directories: Sequence[str] | None = None) -> Iterator[CheckResult]:
    """One finding for each directory that is not ours alone, and one for each with stale sockets."""
    places = socket_places.directories_of(around.uid) if directories is None else list(directories)
    shut: dict[str, str] = {}
    stale: list[str] = []
    for place in places:
        try:
            stale += _stale(place, around.uid)
        except PermissionError as error:
            shut[place] = str(error.strerror)
        except OSError:
            continue  # not there yet, or not to be made: the next one is used
    if stale:
        time.sleep(_AGAIN_S)
        stale = [
            path for place in sorted({os.path.dirname(path) for path in stale}) for path in _stale(place, around.uid)
        ]
    for place, why in shut.items():
        text = f"{place}: {why}: no socket is put there, and none is looked for"
        yield note("socket-directory", text, "have it removed; until then sockets lie in another one beside it")
    if stale:
        many = "1 socket" if len(stale) == 1 else f"{len(stale)} sockets"
        text = f"{many} that nobody listens at, of daemons that were killed: {stale[0]}"
        text += ", ..." if len(stale) > 1 else ""
        yield limit("stale-sockets", text, f"rm {' '.join(stale[:4])}; hfs mount removes its own")
    if not shut and not stale:
        yield good(_NAME, f"no stale sockets in {', '.join(places)}")


def _stale(directory: str, uid: int) -> list[str]:
    """Raises OSError."""
    with socket_places.opened(directory, uid) as descriptor:
        names = sorted(socket_places.names(descriptor, socket_places.DAEMON, socket_places.KEEPER))
        return [f"{directory}/{name}" for name in names if socket_places.is_stale(descriptor, name)]
